// The band explorer: rates from the normal distribution, drawn as the sliders move.
"use strict";

// --- the mathematics (the tests compare it with scipy) -------------------------------------------------------------

// P(N(0, 1) > x). Near 0 by the series of the integral, in the tail by its continued fraction.
function upperTail(x) {
  if (x < 0) return 1 - upperTail(-x);
  const density = Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
  if (x < 3) {
    let term = x;
    let sum = x;
    for (let k = 3; Math.abs(term) > 1e-17 * Math.abs(sum); k += 2) sum += term *= (x * x) / k;
    return 0.5 - density * sum;
  }
  let fraction = x;
  for (let k = 60; k > 0; k--) fraction = x + k / fraction;
  return density / fraction;
}

function normalQuantile(p) {
  let [low, high] = [-9, 9];
  for (let k = 0; k < 60; k++) {
    const middle = (low + high) / 2;
    if (1 - upperTail(middle) < p) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

// Var(S) / (sigma^2 L) of a stationary first-order autoregression of the token log-ratios.
function inflation(L, phi) {
  return (1 + phi) / (1 - phi) - (2 * phi * (1 - phi ** L)) / (L * (1 - phi) ** 2);
}

const drift = (s) => -s.drift * (s.sigma ** 2 / 2);

const RULES = [
  {
    name: "FSPO", colour: "c3", keeps: "μL ± c√L",
    band: (L, s) => [drift(s) * L - s.c * Math.sqrt(L), drift(s) * L + s.c * Math.sqrt(L)],
  },
  {
    name: "FSPO without drift", colour: "c3 dashed", keeps: "± c√L",
    band: (L, s) => [-s.c * Math.sqrt(L), s.c * Math.sqrt(L)],
  },
  {
    name: "Fixed range", said: "the fixed range", colour: "c5", keeps: "log(1 − ε) .. log(1 + ε)", free: "epsilon",
    band: (L, s) => [Math.log1p(-s.epsilon), Math.log1p(s.epsilon)],
  },
  {
    name: "GSPO", colour: "c4", keeps: "L log(1 − ¾ε) .. L log(1 + ε)", free: "gspo",
    band: (L, s) => [L * Math.log1p(-0.75 * s.gspo), L * Math.log1p(s.gspo)],
  },
];

// The share of answers of length L outside a rule's band.
function outside(rule, L, s) {
  const [low, high] = rule.band(L, s);
  const [mean, sd] = [drift(s) * L, s.sigma * Math.sqrt(L * inflation(L, s.phi))];
  return upperTail((mean - low) / sd) + upperTail((high - mean) / sd);
}

const LENGTHS = {
  short: { name: "short: median 64", median: 64, spread: 0.8 },
  reasoning: { name: "reasoning: median 1,024", median: 1024, spread: 1 },
  long: { name: "long reasoning: median 4,096", median: 4096, spread: 1.2 },
};
const BINS = 8;
const EACH = 40; // lengths that stand for a bin
const cache = new Map();

// Lengths at evenly spaced quantiles of a log-normal distribution: equal shares, shortest first.
function lengthsOf(key) {
  if (!cache.has(key)) {
    const { median, spread } = LENGTHS[key];
    const at = (k) => normalQuantile((k + 0.5) / (BINS * EACH));
    cache.set(key, Array.from({ length: BINS * EACH }, (_, k) => Math.max(1, Math.round(median * Math.exp(spread * at(k))))));
  }
  return cache.get(key);
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

function summary(rule, s) {
  const rates = lengthsOf(s.lengths).map((L) => outside(rule, L, s));
  const bins = Array.from({ length: BINS }, (_, k) => mean(rates.slice(k * EACH, (k + 1) * EACH)));
  const kept = 1 - mean(bins);
  const lre = kept > 0 ? Math.max(...bins.map((rate) => Math.abs((1 - rate) / kept - 1))) : NaN;
  return { shortest: bins[0], longest: bins[BINS - 1], overall: mean(bins), lre };
}

// The value of a rule's own setting at which its overall rate is the wanted one.
function matched(rule, wanted, s) {
  let [low, high] = [-16, Math.log(0.9999)];
  for (let k = 0; k < 80; k++) {
    const middle = (low + high) / 2;
    if (summary(rule, { ...s, [rule.free]: Math.exp(middle) }).overall > wanted) low = middle;
    else high = middle;
  }
  return Math.exp((low + high) / 2);
}

// --- settings ------------------------------------------------------------------------------------------------------

const shown = (value) => {
  if (value === 0) return "0";
  if (Math.abs(value) < 1e-3) return value.toExponential(1).replace("e-", "e−").replace(/^-/, "−");
  return Number(value.toPrecision(3)).toLocaleString("en").replace("-", "−");
};
const log10 = { to: Math.log10, from: (x) => 10 ** x, step: 0.005 };
const plain = { to: (x) => x, from: (x) => x, step: 0.05 };
const SLIDERS = {
  sigma: { label: "σ, spread of a token's log-ratio", low: 0.002, high: 0.2, start: 0.02, ...log10 },
  drift: {
    label: "μ, drift a token", low: 0, high: 4, start: 1, ...plain,
    text: (value, s) => (value ? `${shown(drift(s))} = −${value === 1 ? "" : `${shown(value)} `}σ²/2` : "0"),
  },
  phi: { label: "φ, correlation of neighbouring tokens", low: -0.5, high: 0.95, start: 0, ...plain },
  c: { label: "c, half-width of FSPO", low: 0.003, high: 0.3, start: 0.03, ...log10 },
  epsilon: { label: "ε of the fixed range", low: 0.01, high: 0.95, start: 0.2, ...log10 },
  gspo: { label: "ε of GSPO", low: 1e-5, high: 0.1, start: 4e-4, ...log10 },
  length: {
    label: "L, the marked length", low: 8, high: 32768, start: 2048, to: Math.log2, from: (x) => Math.round(2 ** x), step: 0.125,
    text: (value) => `${value.toLocaleString("en")} tokens`,
  },
};
const start = () => ({ ...Object.fromEntries(Object.entries(SLIDERS).map(([k, v]) => [k, v.start])), lengths: "reasoning" });
let state = start();

function controls() {
  for (const [key, slider] of Object.entries(SLIDERS)) {
    const place = document.querySelector(`[data-slider=${key}]`);
    const label = Object.assign(document.createElement("label"), { htmlFor: key, textContent: slider.label });
    const output = Object.assign(document.createElement("output"), { id: `${key}-value` });
    output.setAttribute("for", key);
    const input = Object.assign(document.createElement("input"), {
      type: "range", id: key, min: slider.to(slider.low), max: slider.to(slider.high), step: slider.step,
    });
    input.addEventListener("input", () => {
      state[key] = slider.from(Number(input.value));
      draw();
    });
    place.append(label, output, input);
  }
  const select = document.getElementById("lengths");
  for (const [key, { name }] of Object.entries(LENGTHS)) select.append(new Option(name, key));
  select.addEventListener("change", () => {
    state.lengths = select.value;
    draw();
  });
  document.getElementById("match").addEventListener("click", () => {
    const wanted = summary(RULES[0], state).overall;
    for (const rule of RULES) if (rule.free) state[rule.free] = matched(rule, wanted, state);
    place();
    draw();
  });
  document.getElementById("reset").addEventListener("click", () => {
    state = start();
    place();
    draw();
  });
  place();
}

// The sliders at the state, which may lie between two of their steps.
function place() {
  for (const [key, slider] of Object.entries(SLIDERS)) document.getElementById(key).value = slider.to(state[key]);
  document.getElementById("lengths").value = state.lengths;
}

// --- drawing -------------------------------------------------------------------------------------------------------

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const [SHORTEST, LONGEST] = [8, 32768];

function chart() {
  const holder = document.getElementById("chart");
  const width = Math.max(300, Math.min(860, holder.clientWidth));
  const height = Math.round(Math.max(260, Math.min(420, width * 0.58)));
  const [left, right, top, bottom] = [48, width - 16, 12, height - 44];
  const px = (L) => left + ((Math.log2(L) - 3) / 12) * (right - left);
  const py = (rate) => bottom - rate * (bottom - top);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": "chart-h said" });
  const add = (...parts) => svg.append(element(...parts));
  const spread = lengthsOf(state.lengths);
  const [from, to] = [spread[Math.round(0.05 * spread.length)], spread[Math.round(0.95 * spread.length) - 1]];
  const [x0, x1] = [from, to].map((L) => px(Math.min(LONGEST, Math.max(SHORTEST, L))));
  add("rect", { class: "span", x: x0, y: top, width: x1 - x0, height: bottom - top });
  for (const rate of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    add("line", { class: rate ? "grid" : "axis", x1: left, x2: right, y1: py(rate), y2: py(rate) });
    add("text", { x: left - 6, y: py(rate) + 4, "text-anchor": "end" }, `${100 * rate} %`);
  }
  for (let k = 3; k <= 15; k += width < 480 ? 4 : 2) {
    add("path", { class: "axis", d: `M${px(2 ** k)} ${bottom}v4` });
    add("text", { x: Math.min(px(2 ** k), width - 22), y: bottom + 17, "text-anchor": "middle" }, (2 ** k).toLocaleString("en"));
  }
  add("text", { class: "label", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, "answer length L (tokens, log scale)");
  add("path", { class: "rule", d: `M${px(state.length)} ${top}V${bottom}` });
  const points = [...new Set(Array.from({ length: 145 }, (_, k) => Math.round(2 ** (3 + k / 12))))]; // whole tokens
  for (const rule of [...RULES].reverse()) {
    const d = points.map((L) => `${px(L).toFixed(1)} ${py(outside(rule, L, state)).toFixed(1)}`).join(" ");
    add("path", { class: `line strong ${rule.colour}`, "data-rule": rule.name, d: `M${d}` });
    const at = outside(rule, state.length, state);
    add("circle", { class: `dot ${rule.colour}`, cx: px(state.length), cy: py(at), r: 4 });
  }
  holder.replaceChildren(svg);
}

function legend() {
  const list = document.querySelector(".legend");
  const item = (key, text) => {
    const li = document.createElement("li");
    const svg = element("svg", { class: "key", viewBox: "0 0 18 10" });
    svg.append(key);
    li.append(svg, text);
    list.append(li);
  };
  for (const rule of RULES) item(element("path", { class: `line strong ${rule.colour}`, d: "M0 5h18" }), rule.name);
  item(element("rect", { class: "span", width: 18, height: 10 }), "the middle 90 % of the lengths");
}

function figures() {
  const cell = (value, form) => {
    const td = Object.assign(document.createElement("td"), { className: "n", textContent: form(value) });
    td.dataset.value = value;
    return td;
  };
  const rows = RULES.map((rule) => {
    const s = summary(rule, state);
    const row = document.createElement("tr");
    const head = Object.assign(document.createElement("th"), { scope: "row", textContent: rule.name });
    row.append(head, Object.assign(document.createElement("td"), { textContent: rule.keeps }));
    for (const value of [outside(rule, state.length, state), s.shortest, s.longest, s.overall]) row.append(cell(value, percent));
    row.append(cell(s.lre, (value) => (Number.isFinite(value) ? value.toFixed(3) : "–")));
    return row;
  });
  document.getElementById("figures").replaceChildren(...rows);
  document.getElementById("at").textContent = `At ${state.length.toLocaleString("en")} tokens`;
}

function course(rule) {
  const [a, b] = [SHORTEST, LONGEST].map((L) => outside(rule, L, state));
  const way = Math.abs(a - b) < 0.01 ? "stays near" : b > a ? "rises from" : "falls from";
  return `${rule.said ?? rule.name} ${way} ${percent(a)}${way === "stays near" ? "" : ` to ${percent(b)}`}`;
}

function sentence() {
  const at = (k) => percent(outside(RULES[k], state.length, state));
  document.getElementById("said").textContent =
    `At ${state.length.toLocaleString("en")} tokens FSPO leaves ${at(0)} of the answers outside, without drift ` +
    `${at(1)}, the fixed range ${at(2)} and GSPO ${at(3)}. From ${SHORTEST} to ${LONGEST.toLocaleString("en")} tokens ${RULES.map(course).join(", ")}.`;
}

function draw() {
  for (const [key, slider] of Object.entries(SLIDERS)) {
    const text = slider.text ? slider.text(state[key], state) : shown(state[key]);
    document.getElementById(`${key}-value`).textContent = text;
    document.getElementById(key).setAttribute("aria-valuetext", text);
  }
  chart();
  figures();
  sentence();
}

document.addEventListener("DOMContentLoaded", () => {
  controls();
  legend();
  draw();
  let width = 0;
  new ResizeObserver(([entry]) => {
    if (entry.contentRect.width !== width) {
      width = entry.contentRect.width;
      chart();
    }
  }).observe(document.getElementById("chart"));
});
