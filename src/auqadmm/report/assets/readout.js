// The read-out: the nearest point of every visible curve, under the pointer or moved by keys.

class Readout {
  constructor(chart) {
    this.chart = chart;
    this.at = null; // horizontal position in the drawing
    this.box = el("div", { class: "readout", hidden: true, "aria-live": "polite" });
    chart.host.append(this.box);
  }

  hide() {
    this.at = null;
    this.box.hidden = true;
    if (this.chart.cursor) this.chart.cursor.replaceChildren();
  }

  move(step) {
    const { left, right } = this.chart.area;
    this.show(this.at === null ? (step > 0 ? left : right) : this.at + step * (right - left));
  }

  nearest(points, at) {
    const { xAxis, yAxis } = this.chart;
    let best = -1;
    let distance = Infinity;
    for (let i = 0; i < points.x.length; i++) {
      const d = Math.abs(xAxis.px(points.x[i]) - at);
      if (d < distance) [best, distance] = [i, d];
    }
    return { X: points.X[best], Y: points.Y[best], x: xAxis.px(points.x[best]), y: yAxis.px(points.y[best]) };
  }

  show(at) {
    const { chart } = this;
    const { left, right, top, bottom } = chart.area;
    this.at = Math.min(Math.max(at, left), right);
    const rows = chart
      .visible()
      .map(({ series, points }) => ({ look: chart.series[series], ...this.nearest(points, this.at) }))
      .sort((a, b) => a.y - b.y);
    const inside = ({ x, y }) => x >= left - 1 && x <= right + 1 && y >= top - 1 && y <= bottom + 1;
    const dots = rows
      .filter(inside)
      .map(({ look, x, y }) => svg("circle", { class: "dot c" + look.color, cx: round(x), cy: round(y), r: 4.5 }));
    const line = svg("path", { class: "cross", d: `M${round(this.at)} ${top}V${bottom}` });
    chart.cursor.replaceChildren(line, ...dots);
    this.fill(rows);
    this.place();
  }

  // Curves that stand at the same place share one head line; otherwise each row says where its point is.
  fill(rows) {
    const { x, y } = this.chart;
    const together = rows.every(({ X }) => X === rows[0].X);
    const th = (words) => el("th", { scope: "col" }, words);
    const corner = el("th", { scope: "col", class: "where" }, together && rows.length ? `${x.words} ${number(rows[0].X)}` : "");
    const head = el("tr", {}, corner, ...(together ? [] : [th(x.words)]), th(y.words));
    const body = rows.map(({ look, X, Y }) => {
      const name = el("th", { scope: "row" }, swatch(look), el("span", {}, look.label));
      return el("tr", {}, name, ...(together ? [] : [el("td", {}, number(X))]), el("td", {}, number(Y)));
    });
    this.box.replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
    this.box.hidden = false;
  }

  // Below the drawing, or above it where the window ends: what it speaks of stays in sight.
  place() {
    const { chart, box } = this;
    const plot = chart.root.getBoundingClientRect();
    const wide = box.offsetWidth;
    const left = (this.at * plot.width) / chart.width - wide / 2;
    box.style.left = Math.min(Math.max(left, 0), Math.max(chart.host.clientWidth - wide, 0)) + "px";
    const above = innerHeight - plot.bottom < box.offsetHeight && plot.top > box.offsetHeight + 8;
    box.style.top = (above ? -box.offsetHeight - 8 : plot.height + 4) + "px";
  }
}
