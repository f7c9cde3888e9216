// Zooming and panning by mouse, wheel, keys and buttons.

const DEEPEST = 1e-5; // of the whole range

function scaled([lo, hi], around, factor) {
  return [around - (around - lo) * factor, around + (hi - around) * factor];
}

class Zoom {
  constructor(chart, readout, bar) {
    Object.assign(this, { chart, readout, drag: null });
    this.reset = this.button("Reset", "Reset zoom", () => {
      chart.root.focus({ preventScroll: true }); // the button is about to go, the focus must not be lost
      this.home();
    });
    this.reset.classList.add("reset");
    const out = this.button("−", "Zoom out", () => this.by(1.6));
    const into = this.button("+", "Zoom in", () => this.by(1 / 1.6));
    bar.append(el("div", { class: "zoom" }, this.reset, out, into));
    const root = chart.root;
    root.addEventListener("pointerdown", (event) => this.down(event));
    root.addEventListener("pointermove", (event) => this.move(event));
    root.addEventListener("pointerup", (event) => this.up(event));
    root.addEventListener("pointercancel", () => this.cancel());
    root.addEventListener("pointerleave", (event) => this.drag || event.pointerType === "touch" || readout.hide());
    root.addEventListener("blur", () => readout.hide());
    root.addEventListener("dblclick", () => this.home());
    root.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    root.addEventListener("keydown", (event) => this.key(event));
    this.update();
  }

  button(text, label, action) {
    const button = el("button", { type: "button", "aria-label": `${label}: ${this.chart.panel.title}`, title: label }, text);
    button.addEventListener("click", action);
    return button;
  }

  update() {
    this.reset.classList.toggle("idle", !this.chart.view);
  }

  home() {
    this.set(null);
  }

  set(view) {
    this.chart.view = view;
    this.readout.hide();
    this.chart.draw();
    this.update();
  }

  // Both ranges, unless that is deeper than numbers go or wider than anything is.
  to(x, y) {
    const home = this.chart.home();
    const fits = (range, whole) => {
      const share = (range[1] - range[0]) / (whole[1] - whole[0]);
      return share > DEEPEST && share < 20;
    };
    if (home && fits(x, home.x) && fits(y, home.y)) this.set({ x, y });
  }

  by(factor, px) {
    const { xAxis, yAxis, area } = this.chart;
    if (!this.chart.home()) return;
    const [x, y] = px || [(area.left + area.right) / 2, (area.top + area.bottom) / 2];
    this.to(scaled([xAxis.lo, xAxis.hi], xAxis.at(x), factor), scaled([yAxis.lo, yAxis.hi], yAxis.at(y), factor));
  }

  pan(dx, dy) {
    const { xAxis, yAxis } = this.chart;
    const shift = ({ lo, hi }, share) => [lo + share * (hi - lo), hi + share * (hi - lo)];
    this.set({ x: shift(xAxis, dx), y: shift(yAxis, dy) });
  }

  where(event) {
    const box = this.chart.root.getBoundingClientRect();
    const scale = this.chart.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  }

  inside([x, y]) {
    const { left, right, top, bottom } = this.chart.area;
    return x >= left - 8 && x <= right + 8 && y >= top - 8 && y <= bottom + 8;
  }

  down(event) {
    const at = this.where(event);
    if (!this.inside(at)) return;
    if (event.pointerType === "touch") return this.readout.show(at[0]);
    if (event.button !== 0) return;
    this.drag = { from: at, rect: svg("rect", { class: "selection" }) };
    this.chart.root.setPointerCapture(event.pointerId);
  }

  move(event) {
    const at = this.where(event);
    if (!this.drag) return this.inside(at) ? this.readout.show(at[0]) : this.readout.hide();
    const { x, y } = this.selected(at);
    const { rect } = this.drag;
    for (const [key, value] of Object.entries({ x: x[0], y: y[0], width: x[1] - x[0], height: y[1] - y[0] })) rect.setAttribute(key, value);
    this.readout.hide();
    this.chart.cursor.replaceChildren(rect);
  }

  // The dragged box, cut to the drawing; one that is nearly a line selects along it only.
  selected([x, y]) {
    const { left, right, top, bottom } = this.chart.area;
    const [x0, y0] = this.drag.from;
    const order = (a, b, lo, hi) => [a, b].sort((p, q) => p - q).map((p) => Math.min(Math.max(p, lo), hi));
    const tall = Math.abs(y - y0) >= 12;
    const wide = Math.abs(x - x0) >= 12;
    return {
      x: wide || !tall ? order(x0, x, left, right) : [left, right],
      y: tall || !wide ? order(y0, y, top, bottom) : [top, bottom],
      enough: tall || wide,
    };
  }

  up(event) {
    if (!this.drag) return;
    const { x, y, enough } = this.selected(this.where(event));
    this.cancel();
    if (!enough) return;
    const { xAxis, yAxis } = this.chart;
    this.to(x.map((px) => xAxis.at(px)), [yAxis.at(y[1]), yAxis.at(y[0])]);
  }

  cancel() {
    this.drag = null;
    if (this.chart.cursor) this.chart.cursor.replaceChildren();
  }

  // With Ctrl or ⌘ (a pinch on a trackpad says Ctrl): the bare wheel scrolls the page, as everywhere.
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.by(Math.exp(Math.min(Math.max(event.deltaY, -60), 60) * 0.006), this.where(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => this.pan(-0.1, 0),
      ArrowRight: () => this.pan(0.1, 0),
      ArrowUp: () => this.pan(0, 0.1),
      ArrowDown: () => this.pan(0, -0.1),
      "+": () => this.by(1 / 1.6),
      "=": () => this.by(1 / 1.6),
      "-": () => this.by(1.6),
      0: () => this.home(),
      Escape: () => (this.drag ? this.cancel() : this.home()),
      ",": () => this.readout.move(-0.02),
      ".": () => this.readout.move(0.02),
    };
    if (!actions[event.key] || !this.chart.home()) return;
    event.preventDefault();
    actions[event.key]();
  }
}
