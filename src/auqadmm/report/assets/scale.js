// Axes: which part of the numbers is in view, where ticks stand, and how numbers are written.
// On a logarithmic axis "lo" and "hi" are powers of ten; positions are always linear in them.

const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const PREFIX = ["", "k", "M", "G", "T"];
const NARROW = "\u202f"; // no-break space between a number and its prefix

function power(n) {
  return "10" + (n < 0 ? "⁻" : "") + [...String(Math.abs(n))].map((d) => SUPERSCRIPT[d]).join("");
}

function minus(text) {
  return text.replace("-", "−");
}

// The prefix all ticks of an axis share, as an exponent; null: none fits, write powers.
function shared(largest) {
  if (largest === 0 || (largest >= 1e-3 && largest < 1e4)) return 0;
  const exponent = Math.floor(Math.log10(largest) / 3) * 3;
  return exponent > 0 && exponent <= 12 ? exponent : null;
}

// A number on its own, as in the read-out.
function number(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e4) return minus(String(value));
  const exponent = shared(size);
  if (exponent === null) {
    const n = Math.floor(Math.log10(size) + 1e-12);
    return minus((value / 10 ** n).toPrecision(digits - 1)) + "·" + power(n);
  }
  const text = Number((value / 10 ** exponent).toPrecision(digits)).toString();
  return minus(text) + (exponent ? NARROW + PREFIX[exponent / 3] : "");
}

function linearTicks(lo, hi, count) {
  const rough = (hi - lo) / Math.max(count, 1);
  const base = 10 ** Math.floor(Math.log10(rough));
  const step = base * [1, 2, 5, 10].find((m) => m * base >= rough * 0.999);
  const first = Math.ceil(lo / step - 1e-9);
  const last = Math.floor(hi / step + 1e-9);
  const largest = Math.max(Math.abs(first), Math.abs(last)) * step;
  const exponent = shared(largest);
  const scale = exponent === null ? Math.floor(Math.log10(largest) + 1e-12) : exponent;
  const decimals = Math.min(Math.max(0, Math.ceil(scale - Math.log10(step) - 1e-9)), 12);
  const suffix = exponent === null ? "·" + power(scale) : scale ? NARROW + PREFIX[scale / 3] : "";
  const ticks = [];
  for (let i = first; i <= last && ticks.length < 50; i++) {
    const value = i * step;
    const text = i === 0 ? "0" : minus((value / 10 ** scale).toFixed(decimals)) + suffix;
    ticks.push({ at: value, text });
  }
  return ticks;
}

function logTicks(lo, hi, count) {
  const decades = hi - lo;
  if (decades < 0.7) {
    return linearTicks(10 ** lo, 10 ** hi, count).map((t) => ({ at: Math.log10(t.at), text: t.text }));
  }
  const stride = Math.max(1, Math.ceil(decades / Math.max(count, 1)));
  const between = decades < 2 ? [1, 2, 5] : [1]; // too many for a short axis: it leaves out what would overlap
  const plain = lo >= -2.01 && (hi <= 4 || lo >= -0.5) && hi <= 15;
  const ticks = [];
  for (let n = Math.floor(lo); n <= Math.ceil(hi); n++) {
    for (let m = 1; m < 10; m++) {
      const at = n + Math.log10(m);
      if (at < lo - 1e-9 || at > hi + 1e-9) continue;
      const labelled = between.includes(m) && n % stride === 0;
      if (!labelled && (stride > 1 || decades > 5) && m > 1) continue;
      const written = plain ? number(m * 10 ** n) : (m > 1 ? m + "·" : "") + power(n);
      ticks.push({ at, text: labelled ? written : "", minor: m > 1 });
    }
  }
  return ticks;
}

class Axis {
  constructor(log, lo, hi, from, to) {
    Object.assign(this, { log, lo, hi, from, to });
  }

  px(t) {
    return this.from + ((t - this.lo) / (this.hi - this.lo)) * (this.to - this.from);
  }

  at(px) {
    return this.lo + ((px - this.from) / (this.to - this.from)) * (this.hi - this.lo);
  }

  value(t) {
    return this.log ? 10 ** t : t;
  }

  ticks(count) {
    return (this.log ? logTicks : linearTicks)(this.lo, this.hi, count);
  }
}

// What an axis shows when nobody has zoomed: all values, and a little air; never an empty range.
function extent(values, log, air) {
  let lo = Infinity;
  let hi = -Infinity;
  for (const v of values) {
    if (v < lo) lo = v;
    if (v > hi) hi = v;
  }
  if (lo > hi) return null;
  if (hi - lo <= 1e-12 * Math.max(Math.abs(lo), Math.abs(hi))) {
    const half = log ? 0.5 : Math.abs(lo) * 0.1 || 1;
    return [lo - half, hi + half];
  }
  return [lo - air * (hi - lo), hi + air * (hi - lo)];
}
