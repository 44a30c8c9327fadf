// The band explorer: what each rule clips by length, drawn as the sliders move.
"use strict";

// --- settings ------------------------------------------------------------------------------------------------------

const shown = (value) => {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Math.abs(value) < 1e-3) return value.toExponential(1).replace("e-", "e−").replace(/^-/, "−");
  return value.toLocaleString("en", { maximumSignificantDigits: 3 }).replace("-", "−");
};
const log10 = { to: Math.log10, from: (x) => 10 ** x, step: 0.005 };
const plain = { to: (x) => x, from: (x) => x, step: 0.05 };
const FIXED_SLIDERS = {
  sigma: { label: "σ, spread of a token's log-ratio", low: 0.002, high: 0.2, start: 0.02, ...log10 },
  drift: {
    label: "μ, drift per token", low: 0, high: 4, start: 1, ...plain,
    text: (value, s) => (value ? `${shown(drift(s))} = −${value === 1 ? "" : `${shown(value)} `}σ²/2` : "0"),
  },
  phi: { label: "φ, correlation of neighbouring tokens", low: -0.5, high: 0.95, start: 0, ...plain },
};
const LENGTH_SLIDER = {
  label: "L, the marked length", low: 8, high: 32768, start: 2048, to: Math.log2, from: (x) => Math.round(2 ** x), step: 0.125,
  text: (value) => `${value.toLocaleString("en")} tokens`,
};

// The width of a rule, shown as the parameters that it stands for.
const widthSlider = ({ name, parameters }) => ({
  label: `${name}: ${parameters.map(([parameter]) => parameter).join(", ") || "width"}`,
  low: 0.01, high: 100, start: 1, ...log10,
  text: (factor) => parameters.map(([, at]) => shown(at(factor))).join(", ") || `× ${shown(factor)}`,
});

let SLIDERS;

function makeSliders() {
  const widths = RULES.filter((rule) => rule.slider && !rule.centred).map((rule) => [rule.slider, widthSlider(rule)]);
  SLIDERS = { ...FIXED_SLIDERS, ...Object.fromEntries(widths), length: LENGTH_SLIDER };
}

const start = () => ({ ...Object.fromEntries(Object.entries(SLIDERS).map(([k, v]) => [k, v.start])), lengths: "reasoning" });
let state;

function controls() {
  for (const [key, slider] of Object.entries(SLIDERS)) {
    const row = document.createElement("div");
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
    row.append(label, output, input);
    document.getElementById("sliders").append(row);
  }
  const select = document.getElementById("lengths");
  for (const [key, { name }] of Object.entries(LENGTHS)) select.append(new Option(name, key));
  select.addEventListener("change", () => {
    state.lengths = select.value;
    draw();
  });
  document.getElementById("match").addEventListener("click", () => {
    const wanted = summary(RULES[0], state).overall;
    for (const rule of RULES) {
      if (rule.slider && rule.slider !== RULES[0].slider) state[rule.slider] = matched(rule, wanted, state);
    }
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

// Puts the sliders at the state, which may lie between two of their steps.
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
    add("path", { class: `line strong ${rule.look}`, "data-rule": rule.name, d: `M${d}` });
    const at = outside(rule, state.length, state);
    add("circle", { class: `dot ${rule.look}`, cx: px(state.length), cy: py(at), r: 4 });
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
  for (const rule of RULES) item(element("path", { class: `line strong ${rule.look}`, d: "M0 5h18" }), rule.name);
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
    const bounds = band(rule, state.length, state).map(shown).join(" to ");
    row.append(head, Object.assign(document.createElement("td"), { className: "bounds", textContent: bounds }));
    for (const value of [outside(rule, state.length, state), s.shortest, s.longest, s.overall]) row.append(cell(value, percent));
    row.append(cell(s.lre, (value) => (Number.isFinite(value) ? value.toFixed(3) : "–")));
    return row;
  });
  document.getElementById("figures").replaceChildren(...rows);
  const where = `at ${state.length.toLocaleString("en")} tokens`;
  document.getElementById("bounds").textContent = `Bounds of S ${where}`;
  document.getElementById("at").textContent = `Outside ${where}`;
}

function course(rule) {
  const [a, b] = [SHORTEST, LONGEST].map((L) => outside(rule, L, state));
  const way = Math.abs(a - b) < 0.01 ? "stays near" : b > a ? "rises from" : "falls from";
  return `${rule.name} ${way} ${percent(a)}${way === "stays near" ? "" : ` to ${percent(b)}`}`;
}

function sentence() {
  const rates = RULES.map((rule) => `${rule.name} ${percent(outside(rule, state.length, state))}`);
  document.getElementById("said").textContent =
    `Outside the band at ${state.length.toLocaleString("en")} tokens: ${rates.join(", ")}. ` +
    `From ${SHORTEST} to ${LONGEST.toLocaleString("en")} tokens ${RULES.map(course).join(", ")}.`;
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
  readRules();
  makeSliders();
  state = start();
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
