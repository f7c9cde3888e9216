// Columns become points, points become lines and markers.

const SVG = "http://www.w3.org/2000/svg";

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  return fill(node, attributes, children);
}

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  return fill(node, attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children); // strings become text nodes: a label is never markup
  return node;
}

// A column of the data: [start, step, count], or float32 in base64.
function unpack(column) {
  if (Array.isArray(column)) {
    const [start, step, count] = column;
    return Float64Array.from({ length: count }, (_, i) => start + step * i);
  }
  const bytes = Uint8Array.from(atob(column), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

// The lowest value a logarithmic axis shows: points at or below it are drawn on it.
// "given" is one that the report asks for; "exact": nothing but zeros and negative numbers lies below.
function floorOf(columns, tens, given) {
  let least = Infinity;
  let most = 0;
  for (const column of columns) {
    for (const v of column) {
      if (v > 0 && v < least) least = v;
      if (v > most && v < Infinity) most = v;
    }
  }
  if (least === Infinity) return null;
  const deepest = given === null ? Math.floor(Math.log10(most) - 18) : Math.log10(given); // deeper is rounding
  const lowest = Math.log10(least);
  const natural = tens ? Math.floor(lowest - 1e-9) : lowest - 0.3;
  return { at: Math.max(natural, deepest), exact: lowest >= deepest };
}

// Points in axis coordinates. NaN was not measured: the line goes on across it. Infinity breaks the line.
function pointsOf(X, Y, xFloor, yFloor) {
  const points = { x: [], y: [], X: [], Y: [], breaks: new Set(), clippedX: 0, clippedY: 0, broken: 0 };
  let broken = true;
  for (let i = 0; i < X.length; i++) {
    if (Number.isNaN(X[i]) || Number.isNaN(Y[i])) continue;
    if (!Number.isFinite(X[i]) || !Number.isFinite(Y[i])) {
      broken = true;
      points.broken += 1;
      continue;
    }
    let x = X[i];
    let y = Y[i];
    if (xFloor) {
      x = x > 0 ? Math.log10(x) : -Infinity;
      if (x < xFloor.at) points.clippedX += 1;
      x = Math.max(x, xFloor.at);
    }
    if (yFloor) {
      y = y > 0 ? Math.log10(y) : -Infinity;
      if (y < yFloor.at) points.clippedY += 1;
      y = Math.max(y, yFloor.at);
    }
    if (broken) points.breaks.add(points.x.length);
    broken = false;
    points.x.push(x);
    points.y.push(y);
    points.X.push(X[i]);
    points.Y.push(Y[i]);
  }
  return points;
}

function round(px) {
  return Math.round(px * 10) / 10;
}

function linePath(points, xAxis, yAxis) {
  let path = "";
  for (let i = 0; i < points.x.length; i++) {
    path += (points.breaks.has(i) ? "M" : "L") + round(xAxis.px(points.x[i])) + " " + round(yAxis.px(points.y[i]));
  }
  return path;
}

function polygon(corners, radius, turn, inner = 1) {
  return Array.from({ length: corners }, (_, i) => {
    const angle = turn + (2 * Math.PI * i) / corners;
    const r = i % 2 ? radius * inner : radius;
    return [r * Math.sin(angle), -r * Math.cos(angle)];
  });
}

function cross(radius, turn) {
  const w = 0.36;
  const arms = [
    [-w, -1], [w, -1], [w, -w], [1, -w], [1, w], [w, w], [w, 1], [-w, 1], [-w, w], [-1, w], [-1, -w], [-w, -w],
  ];
  const [c, s] = [Math.cos(turn) * radius, Math.sin(turn) * radius];
  return arms.map(([x, y]) => [c * x - s * y, s * x + c * y]);
}

// The corners of each marker, by matplotlib's letters; a circle has enough of them to look round.
const SHAPES = {
  o: (r) => polygon(16, r * 0.95, 0),
  s: (r) => polygon(4, r * 1.25, Math.PI / 4),
  D: (r) => polygon(4, r * 1.25, 0),
  "^": (r) => polygon(3, r * 1.25, 0),
  v: (r) => polygon(3, r * 1.25, Math.PI),
  "<": (r) => polygon(3, r * 1.25, -Math.PI / 2),
  ">": (r) => polygon(3, r * 1.25, Math.PI / 2),
  p: (r) => polygon(5, r * 1.15, 0),
  h: (r) => polygon(6, r * 1.1, 0),
  "*": (r) => polygon(10, r * 1.4, 0, 0.45),
  P: (r) => cross(r * 1.15, 0),
  X: (r) => cross(r * 1.15, Math.PI / 4),
};

function markerPath(shape, x, y, radius) {
  const corners = (SHAPES[shape] || SHAPES.o)(radius);
  return "M" + corners.map(([dx, dy]) => round(x + dx) + " " + round(y + dy)).join("L") + "Z";
}

// Which points carry a marker: all if few, else some at equal distances, shifted from series to series so that curves
// that coincide show the markers of both. A point alone between two breaks always has one: it has no line.
function marked(points, xAxis, left, right, shift) {
  const every = Math.max((right - left) / 7, 30);
  const chosen = [];
  let next = left + every * shift;
  for (let i = 0; i < points.x.length; i++) {
    const px = xAxis.px(points.x[i]);
    if (px < left - 6 || px > right + 6) continue;
    const alone = points.breaks.has(i) && (i + 1 === points.x.length || points.breaks.has(i + 1));
    if (!alone && px < next && i + 1 < points.x.length) continue;
    chosen.push(i);
    while (next <= px) next += every;
  }
  return chosen;
}

// The line and marker that stand for a series in buttons, labels and the read-out.
function swatch(series, width = 22) {
  const middle = width / 2;
  return svg(
    "svg",
    { class: "swatch c" + series.color, width, height: 12, viewBox: `0 0 ${width} 12`, "aria-hidden": "true" },
    svg("path", { class: "line" + (series.control ? " control" : ""), d: `M0 6H${width}` }),
    svg("path", { class: "mark" + (series.control ? " hollow" : ""), d: markerPath(series.marker, middle, 6, 3.6) }),
  );
}
