// One panel as SVG: axes, lines, markers and a label at the end of each line.

const TEXT_PX = 12;
const LINE_PX = 15; // from label to label
const measure = document.createElement("canvas").getContext("2d");
measure.font = TEXT_PX + "px system-ui, sans-serif";
let charts = 0;

function widthOf(text) {
  return measure.measureText(text).width;
}

function shorten(text, room) {
  if (widthOf(text) <= room) return text;
  let end = text.length;
  while (end > 1 && widthOf(text.slice(0, end) + "…") > room) end -= 1;
  return text.slice(0, end).trimEnd() + "…";
}

// Moves labels apart, keeps their order and stays as near as possible to where they belong.
function spread(items, top, bottom) {
  items.sort((a, b) => a.y - b.y || a.series - b.series);
  const gap = Math.min(LINE_PX, (bottom - top) / Math.max(items.length - 1, 1));
  const groups = [];
  for (const item of items) {
    groups.push({ items: [item], y: item.y });
    while (groups.length > 1) {
      const [above, below] = groups.slice(-2);
      if (above.y + (above.items.length - 1) * gap + gap <= below.y) break;
      const all = [...above.items, ...below.items];
      const mean = all.reduce((sum, one, i) => sum + one.y - i * gap, 0) / all.length;
      groups.splice(-2, 2, { items: all, y: mean });
    }
    const last = groups[groups.length - 1];
    last.y = Math.min(Math.max(last.y, top), bottom - (last.items.length - 1) * gap);
  }
  for (const group of groups) group.items.forEach((item, i) => (item.at = group.y + i * gap));
  // Groups pushed in by an edge may touch again: one pass down, one pass up.
  for (let i = 1; i < items.length; i++) items[i].at = Math.max(items[i].at, items[i - 1].at + gap);
  let limit = bottom;
  for (let i = items.length - 1; i >= 0; i--) {
    items[i].at = Math.min(items[i].at, limit);
    limit = items[i].at - gap;
  }
}

class Chart {
  constructor(host, panel, series, shown) {
    Object.assign(this, { host, panel, series, shown, xi: 0, yi: 0, view: null, width: 0, id: "clip" + charts++ });
    this.columns = new Map();
    this.cache = new Map();
    this.root = svg("svg", { class: "plot", tabindex: 0, role: "group", "aria-roledescription": "chart" });
    this.message = el("p", { class: "message", hidden: true });
    this.note = el("p", { class: "note", hidden: true });
    host.append(this.root, this.message, this.note);
  }

  get x() {
    return this.panel.x[this.xi];
  }

  get y() {
    return this.panel.y[this.yi];
  }

  column(curve, way, axis) {
    const packed = this.panel.curves[curve][way][axis];
    const key = `${curve} ${way} ${axis}`;
    if (packed !== null && !this.columns.has(key)) this.columns.set(key, unpack(packed));
    return packed === null ? null : this.columns.get(key);
  }

  floor(way, axis, tens) {
    if (!this.panel[way][axis].log) return undefined;
    const columns = this.panel.curves.map((_, i) => this.column(i, way, axis)).filter((column) => column);
    return floorOf(columns, tens, this.panel[way][axis].floor);
  }

  // Points of every curve on the chosen axes; null where the curve was not measured on one of them.
  points() {
    const key = `${this.xi} ${this.yi}`;
    if (!this.cache.has(key)) {
      const xFloor = this.floor("x", this.xi, false);
      const yFloor = this.floor("y", this.yi, true);
      const none = xFloor === null || yFloor === null; // a logarithmic axis without a positive number
      const all = this.panel.curves.map((_, i) => {
        const X = this.column(i, "x", this.xi);
        const Y = this.column(i, "y", this.yi);
        if (none || !X || !Y) return null;
        const points = pointsOf(X, Y, xFloor, yFloor);
        return points.x.length ? points : null;
      });
      this.cache.set(key, { all, xFloor, yFloor });
    }
    return this.cache.get(key);
  }

  // The curves to draw: [{curve, series, points}].
  visible() {
    const { all } = this.points();
    return this.panel.curves
      .map((curve, i) => ({ curve: i, series: curve.series, points: all[i] }))
      .filter(({ series, points }) => points && this.shown.has(series));
  }

  home() {
    const drawn = this.visible();
    const x = extent(drawn.flatMap((d) => d.points.x), this.x.log, 0.02);
    const y = extent(drawn.flatMap((d) => d.points.y), this.y.log, 0.05);
    return x && y ? { x, y } : null;
  }

  // As wide as its place, or as told.
  draw(width) {
    this.width = width || Math.max(Math.round(this.host.clientWidth), 240);
    const home = this.home();
    const drawn = this.visible();
    this.root.toggleAttribute("hidden", !home);
    this.say(home);
    if (!home) return this.root.replaceChildren();
    this.layout(drawn, home);
    const clip = svg("clipPath", { id: this.id }, svg("rect", this.box(this.view ? 0 : 4)));
    this.lines = svg("g", { "clip-path": `url(#${this.id})` });
    const labels = svg("g", { class: "labels" });
    const ends = [];
    drawn.forEach(({ series, points }) => {
      this.lines.append(this.curve(series, points));
      const end = this.end(points);
      if (end) ends.push({ series, ...end });
    });
    this.label(labels, ends);
    this.cursor = svg("g", { class: "cursor" });
    this.root.replaceChildren(svg("defs", {}, clip), this.axes(), this.lines, labels, this.cursor);
  }

  layout(drawn, home) {
    const narrow = this.width < 380;
    const height = Math.round(narrow ? this.width * 0.86 : Math.min(Math.max(this.width * 0.62, 300), 420));
    const longest = Math.max(...drawn.map((d) => widthOf(this.series[d.series].label)));
    this.inset = narrow ? 17 : 24; // from the drawing to the text of a label
    const right = Math.min(longest + this.inset + 2, Math.max(this.width * 0.3, 96));
    this.area = { left: 50, right: Math.floor(this.width - right), top: 24, bottom: height - 46 };
    const view = this.view || home;
    this.xAxis = new Axis(this.x.log, ...view.x, this.area.left, this.area.right);
    this.yAxis = new Axis(this.y.log, ...view.y, this.area.bottom, this.area.top);
    this.root.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.height = height;
  }

  box(more = 0) {
    const { left, right, top, bottom } = this.area;
    return { x: left - more, y: top - more, width: right - left + 2 * more, height: bottom - top + 2 * more };
  }

  axes() {
    const { left, right, top, bottom } = this.area;
    const group = svg("g", { class: "axes", "aria-hidden": "true" });
    let edge = -Infinity; // where the last label of the horizontal axis ended
    for (const tick of this.xAxis.ticks(Math.max((right - left) / 80, 3))) {
      const x = round(this.xAxis.px(tick.at));
      group.append(svg("path", { class: tick.minor ? "grid minor" : "grid", d: `M${x} ${top}V${bottom}` }));
      const half = widthOf(tick.text) / 2;
      if (!tick.text || x - half < edge + 6) continue;
      edge = x + half;
      group.append(svg("text", { x, y: bottom + 18, class: "tick", "text-anchor": "middle" }, tick.text));
    }
    for (const tick of this.yAxis.ticks(Math.max((bottom - top) / 42, 3))) {
      const y = round(this.yAxis.px(tick.at));
      group.append(svg("path", { class: tick.minor ? "grid minor" : "grid", d: `M${left} ${y}H${right}` }));
      if (tick.text) group.append(svg("text", { x: left - 8, y: y + 4, class: "tick", "text-anchor": "end" }, tick.text));
    }
    group.append(svg("path", { class: "frame", d: `M${left} ${top}V${bottom}H${right}` }));
    const middle = (left + right) / 2;
    group.append(svg("text", { x: middle, y: bottom + 38, class: "axis-x", "text-anchor": "middle" }, this.x.words));
    group.append(svg("text", { x: 4, y: 12, class: "axis-y" }, shorten(this.y.words, this.width - 8)));
    return group;
  }

  curve(series, points) {
    const look = this.series[series];
    const { left, right } = this.area;
    const shift = ((series * 5) % 9) / 9;
    const marks = marked(points, this.xAxis, left, right, shift)
      .map((i) => markerPath(look.marker, this.xAxis.px(points.x[i]), this.yAxis.px(points.y[i]), 3.6))
      .join("");
    return svg(
      "g",
      { class: "curve c" + look.color, "data-series": series },
      svg("path", { class: "line" + (look.control ? " control" : ""), d: linePath(points, this.xAxis, this.yAxis) }),
      svg("path", { class: "mark" + (look.control ? " hollow" : ""), d: marks }),
    );
  }

  // Where a curve leaves the view on the right, or ends in it; null: nowhere in view.
  end(points) {
    const { lo, hi } = this.xAxis;
    let last = -1;
    for (let i = 0; i < points.x.length; i++) if (points.x[i] <= hi && (last < 0 || points.x[i] >= points.x[last])) last = i;
    if (last < 0) return null;
    let [x, y] = [points.x[last], points.y[last]];
    const next = last + 1;
    if (next < points.x.length && !points.breaks.has(next) && points.x[next] > hi) {
      y += ((hi - x) / (points.x[next] - x)) * (points.y[next] - y);
      x = hi;
    }
    if (x < lo || y < this.yAxis.lo || y > this.yAxis.hi) return null;
    return { x: this.xAxis.px(x), y: this.yAxis.px(y) };
  }

  label(group, ends) {
    const { right, top, bottom } = this.area;
    spread(ends, top + 4, bottom - 2);
    for (const { series, x, y, at } of ends) {
      const look = this.series[series];
      const text = shorten(look.label, this.width - right - this.inset);
      group.append(
        svg(
          "g",
          { class: "end c" + look.color, "data-series": series },
          svg("path", { class: "leader", d: `M${round(x + 5)} ${round(y)}L${round(right + 4)} ${round(y)}L${right + this.inset - 13} ${round(at)}` }),
          svg("path", { class: "mark" + (look.control ? " hollow" : ""), d: markerPath(look.marker, right + this.inset - 8, at, 3.4) }),
          svg("text", { x: right + this.inset, y: round(at + 4) }, text, svg("title", {}, look.label)),
        ),
      );
    }
  }

  // What a reader must know to read the drawing, in words.
  say(home) {
    const { all, xFloor, yFloor } = this.points();
    const drawn = this.visible();
    const sum = (name) => drawn.reduce((total, d) => total + d.points[name], 0);
    const notes = [];
    const points = (n) => (n === 1 ? "1 point" : n + " points");
    const [down, aside, broken] = [sum("clippedY"), sum("clippedX"), sum("broken")];
    const low = ({ at }) => (Number.isInteger(at) && at < -2 ? power(at) : number(10 ** at, 2));
    if (down && yFloor.exact) notes.push(`${points(down)} at or below zero, drawn at ${low(yFloor)}.`);
    if (down && !yFloor.exact) notes.push(`${points(down)} below ${low(yFloor)}, drawn at ${low(yFloor)}.`);
    if (aside) notes.push(`${points(aside)} at zero of the horizontal axis, drawn at ${low(xFloor)}.`);
    if (broken) notes.push(`${points(broken)} not finite, left out.`);
    const missing = this.panel.curves.filter((c, i) => !all[i] && this.shown.has(c.series)).map((c) => this.series[c.series].label);
    if (missing.length && drawn.length) notes.push(`Nothing to draw here for ${missing.join(", ")}.`);
    this.note.textContent = notes.join(" ");
    this.note.hidden = !notes.length;
    const nobody = !this.panel.curves.some((c) => this.shown.has(c.series));
    this.message.textContent = nobody && this.panel.curves.length ? "No method is switched on." : "No finite values to draw.";
    this.message.hidden = Boolean(home);
    const names = drawn.map((d) => this.series[d.series].label).join(", ");
    this.root.setAttribute("aria-label", `${this.panel.title}: ${this.y.words} against ${this.x.words}. Curves: ${names}.`);
  }
}
