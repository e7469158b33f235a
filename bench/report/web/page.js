"use strict";
// Sorts and filters the tables, draws the figures, shows the rows. Whatever comes from data becomes text, never markup.

const DASHES = ["", "6 3", "7 2.5 1.5 2.5", "1.5 2.5", "8 2 1.5 2 1.5 2", "3 1.5"];
const SYMBOLS = ["circle", "square", "triangle", "diamond", "cross", "wye", "star", "asterisk"];
const COLOURS = 8;
const SVG = "http://www.w3.org/2000/svg";

function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  Object.assign(element, properties);
  element.append(...children);
  return element;
}

function drawn(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

const read = (element) => JSON.parse(element.textContent);
const words = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
const rounded = (value) => (Number.isSafeInteger(value) ? value : Number(value.toPrecision(5)));
const shown = (value) => (value === null || value === undefined ? "–" : String(rounded(value)));

const told = (name, note) => (note ? `${name} (${note})` : name);

// Tables.

function prepareTable(frame) {
  const table = frame.querySelector("table");
  const body = table.tBodies[0];
  const ranks = JSON.parse(frame.dataset.ranks);
  const rows = Array.from(body.rows, (row, place) => ({ row, place, apart: row.classList.contains("published") }));
  const heads = Array.from(table.tHead.rows[0].cells);

  function sort(column, direction) {
    const of = ({ place }) => ranks[column][place];
    rows.sort((a, b) => {
      if (a.apart !== b.apart) return a.apart - b.apart;
      if (!direction) return a.place - b.place;
      if ((of(a) === null) !== (of(b) === null)) return of(a) === null ? 1 : -1;
      return direction * (of(a) - of(b)) || a.place - b.place;
    });
    body.append(...rows.map(({ row }) => row));
    heads.forEach((head, i) => {
      if (i === column && direction) head.ariaSort = direction > 0 ? "ascending" : "descending";
      else head.removeAttribute("aria-sort");
    });
  }

  if (rows.length > 1) {
    heads.forEach((head, column) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      const next = { ascending: -1, descending: 0 };
      button.addEventListener("click", () => sort(column, next[head.ariaSort] ?? 1));
      if (frame.classList.contains("sheet") && body.rows[0].cells[column].tagName === "TH") head.classList.add("name");
      head.append(button);
    });
  }

  if (rows.length > 3) {
    const input = make("input", { type: "search", id: `${frame.id}-filter` });
    const count = make("span", { className: "count" });
    count.setAttribute("role", "status");
    input.addEventListener("input", () => {
      const wanted = words(input.value);
      let left = 0;
      for (const { row } of rows) {
        const text = Array.from(row.cells, (cell) => cell.textContent.toLowerCase()).join("\n");
        row.hidden = !wanted.every((word) => text.includes(word));
        left += !row.hidden;
      }
      count.textContent = wanted.length ? `${left} of ${rows.length} rows` : "";
    });
    frame.querySelector(".head").append(
      count, make("div", { className: "filter" }, make("label", { htmlFor: input.id }, "Filter"), input),
    );
  }
}

// Figures.

// As in print: a colour comes again with other dashes and another symbol.
const colour = (look) => `var(--series-${look % COLOURS})`;
const dashes = (look) => DASHES[(look + Math.floor(look / 24)) % DASHES.length];
const symbol = (look) => SYMBOLS[(look + Math.floor(look / COLOURS)) % SYMBOLS.length];
const dotted = (style) => style === "points" || style === "joined";

function legend(box, panels, looks) {
  const styles = {}, notes = {};
  for (const one of panels.flatMap((panel) => panel.series ?? [])) {
    (styles[one.name] ??= new Set()).add(one.style);
    (notes[one.name] ??= new Set()).add(one.note);
  }
  const symbols = { circle: d3.symbolCircle, square: d3.symbolSquare, triangle: d3.symbolTriangle, diamond: d3.symbolDiamond,
    cross: d3.symbolCross, wye: d3.symbolWye, star: d3.symbolStar, asterisk: d3.symbolAsterisk };
  for (const [name, look] of Object.entries(looks)) {
    const sign = drawn("svg", { width: 28, height: 12, viewBox: "-14 -6 28 12", "aria-hidden": "true" });
    if (["line", "theory", "joined"].some((style) => styles[name].has(style))) {
      sign.append(drawn("line", { x1: -14, x2: 14, stroke: colour(look), "stroke-width": 2, "stroke-dasharray": dashes(look) }));
    }
    if ([...styles[name]].some(dotted)) {
      const filled = symbol(look) !== "asterisk";
      sign.append(drawn("path", { d: d3.symbol(symbols[symbol(look)], 42)(), fill: filled ? colour(look) : "none", stroke: colour(look) }));
    }
    const note = notes[name].size === 1 ? [...notes[name]][0] : ""; // what differs between panels is told at the points
    box.append(make("span", {}, sign, told(name, note)));
  }
  for (const name of Object.keys(styles).filter((one) => styles[one].has("front"))) {
    const sign = drawn("svg", { width: 28, height: 12, viewBox: "-14 -6 28 12", "aria-hidden": "true" });
    sign.append(drawn("line", { x1: -14, x2: 14, stroke: "var(--quiet)", "stroke-dasharray": "1.5 1.5" }));
    sign.append(drawn("circle", { r: 5, fill: "none", stroke: "var(--quiet)" }));
    box.append(make("span", {}, sign, name));
  }
}

function points(panel) {
  const found = [];
  for (const one of panel.series) {
    one.x.forEach((x, i) => {
      const y = one.y[i];
      const there = x !== null && y !== null && (!panel.log_x || x > 0) && (!panel.log_y || y > 0);
      if (!there) return;
      const floor = panel.log_y ? 0.01 * y : -Infinity;
      const low = one.low ? one.low[i] : null, high = one.high ? one.high[i] : null;
      const left = one.x_low ? one.x_low[i] : null, right = one.x_high ? one.x_high[i] : null;
      found.push({
        series: one, x, y, i, low: low === null ? null : Math.max(low, floor), high, said: low,
        left: left === null ? null : Math.max(left, panel.log_x ? 0.01 * x : -Infinity), right,
      });
    });
  }
  return found;
}

function saying(panel, point) {
  const range = point.high === null ? "" : ` [${shown(point.said)}, ${shown(point.high)}]`;
  const kind = point.series.style === "theory" ? ", theory" : "";
  const sideways = point.right === null ? "" : ` [${shown(point.left)}, ${shown(point.right)}]`;
  const y = panel.y_names.length ? panel.y_names[point.y] : `${panel.y_label}: ${shown(point.y)}${range}`;
  return `${told(point.series.name, point.series.note)}${kind}\n${panel.x_label}: ${shown(point.x)}${sideways}\n${y}`;
}

function drawLines(panel, width) {
  const all = points(panel);
  const marks = [];
  for (const one of panel.series) {
    const own = all.filter((point) => point.series === one);
    if (one.style === "front") {
      const curve = own.at(-1).y < own[0].y ? "step-before" : "step-after"; // a point holds where x is no better
      marks.push(Plot.lineY(own, { x: "x", y: "y", curve, stroke: "var(--quiet)", strokeDasharray: "1.5 1.5" }));
      marks.push(Plot.dot(own, { x: "x", y: "y", r: 8, stroke: "var(--quiet)" }));
      continue;
    }
    const stroke = colour(one.look), bounded = own.filter((point) => point.low !== null && point.high !== null);
    if (dotted(one.style)) {
      const sideways = own.filter((point) => point.left !== null && point.right !== null);
      marks.push(Plot.ruleX(bounded, { x: "x", y1: "low", y2: "high", stroke, strokeWidth: 1 }));
      marks.push(Plot.ruleY(sideways, { y: "y", x1: "left", x2: "right", stroke, strokeWidth: 1 }));
      if (one.style === "joined") marks.push(Plot.lineY(own, { x: "x", y: "y", stroke, strokeWidth: 1.5, strokeDasharray: dashes(one.look) || "none" }));
      marks.push(Plot.dot(own, { x: "x", y: "y", symbol: symbol(one.look), fill: symbol(one.look) === "asterisk" ? "none" : stroke, stroke, strokeWidth: 1, r: 3 }));
    } else {
      const gaps = one.x.map((x, i) => own.find((point) => point.i === i) ?? { x, y: NaN, low: NaN, high: NaN });
      if (bounded.length) marks.push(Plot.areaY(gaps, { x: "x", y1: "low", y2: "high", fill: stroke, fillOpacity: 0.15 }));
      const strokeWidth = one.style === "theory" ? 1.25 : 2;
      marks.push(Plot.lineY(gaps, { x: "x", y: "y", stroke, strokeWidth, strokeDasharray: dashes(one.look) || "none" }));
      if (own.length === 1) marks.push(Plot.dot(own, { x: "x", y: "y", fill: stroke, r: 3 }));
    }
  }
  const near = Plot.pointer({ x: "x", y: "y", maxRadius: 60 });
  const measured = all.filter((point) => point.series.style !== "front"); // the points of a front are there already
  const told = d3.sort(measured, (point) => point.series.style !== "theory"); // of two in one place the measured one, the last
  marks.push(Plot.dot(told, { ...near, r: 5, stroke: "currentColor", strokeWidth: 1.5 }));
  marks.push(Plot.tip(told, { ...near, title: (point) => saying(panel, point), lineHeight: 1.3, fontSize: 12 }));
  const names = panel.y_names;
  const y = names.length
    ? { type: "linear", label: null, domain: [names.length - 0.5, -0.5], ticks: d3.range(names.length), tickFormat: (i) => names[i] }
    : axis(panel.log_y, panel.y_label, all, ({ y, low, high }) => [y, low, high], 6, panel.bounds);
  const marginLeft = Math.max(56, 24 + 6.5 * (d3.max(names, (name) => name.length) ?? 0));
  const svg = Plot.plot({
    width, height: Math.round(Math.min(340, Math.max(240, 0.62 * width))), marginLeft, marginBottom: 40, marginTop: 26, marginRight: 18,
    x: axis(panel.log_x, panel.x_label, all, ({ x, left, right }) => [x, left, right], Math.max(3, width / 90)),
    y: { ...y, grid: true, clamp: !!panel.bounds },
    marks,
  });
  return { svg, places: measured, say: (point) => saying(panel, point) };
}

function named(value) {
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-3 && size < 1e5)) return d3.format(",~g")(Number(value.toPrecision(6)));
  return d3.format(".9~e")(value).replace("e+", "e");
}

function logTicks([low, high]) {
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((to - from) / 7));
  const digits = to - from <= 2 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = from; power <= to; power += every) for (const digit of digits) found.push(Number(`${digit}e${power}`));
  return found.filter((value) => value >= low && value <= high);
}

function axis(log, label, all, values, ticks, bounds) {
  if (!log) {
    const linear = { type: "linear", label, nice: true, ticks, tickFormat: named };
    const [low, high] = d3.extent(all.flatMap(values).filter((value) => value !== null));
    return bounds && low !== undefined ? { ...linear, domain: [Math.max(low, bounds[0]), Math.min(high, bounds[1])] } : linear;
  }
  const limits = d3.extent(all.flatMap(values).filter((value) => value !== null && value > 0));
  if (limits[0] === undefined) return { type: "log", label };
  const domain = limits[0] < limits[1] ? limits : [limits[0] / 2, limits[0] * 2];
  const found = logTicks(domain);
  return { type: "log", label, domain, ticks: found.length > 1 ? found : d3.ticks(...domain, 4), tickFormat: named };
}

function drawHeat(panel, width, limits) {
  const all = [];
  panel.rows.forEach((row, i) => panel.columns.forEach((column, j) => {
    const value = panel.values[i][j];
    if (value !== null && value > 0) all.push({ x: column, y: row, value });
  }));
  const every = (names, most) => names.filter((_, i) => i % Math.ceil(names.length / most) === 0);
  const say = (cell) => `${panel.x_label}: ${cell.x}\n${panel.y_label}: ${cell.y}\n${panel.value_label}: ${shown(cell.value)}`;
  const near = Plot.pointer({ x: "x", y: "y", maxRadius: 60 });
  const svg = Plot.plot({
    width, height: Math.round(Math.min(300, Math.max(180, 0.5 * width))), marginLeft: 48, marginBottom: 40, marginTop: 6,
    x: { type: "band", domain: panel.columns, label: panel.x_label, ticks: every(panel.columns, 8), padding: 0 },
    y: { type: "band", domain: panel.rows.slice().reverse(), label: panel.y_label, ticks: every(panel.rows, 8), padding: 0 },
    color: { type: "log", scheme: "cividis", domain: limits },
    marks: [
      Plot.cell(all, { x: "x", y: "y", fill: "value", inset: 0 }),
      Plot.cell(all, { ...near, stroke: "currentColor", strokeWidth: 2 }),
      Plot.tip(all, { ...near, title: say, lineHeight: 1.3, fontSize: 12 }),
    ],
  });
  return { svg, places: all, say };
}

// The keys go through the values one by one, also through those that lie on one another, where a pointer finds only one.
function withKeys(svg, panel, places, say, tip) {
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("role", "group");
  svg.setAttribute("aria-label", `Chart ${panel.title}: ${panel.y_label} over ${panel.x_label}. Arrow keys read the values.`);
  const x = svg.scale("x"), y = svg.scale("y");
  const middle = (scale, value) => scale.apply(value) + (scale.bandwidth ?? 0) / 2;
  const lines = Array.from(d3.group(places, (one) => one.series ?? one.y).values());
  const ring = drawn("circle", { r: 6, fill: "none", stroke: "currentColor", "stroke-width": 2, "pointer-events": "none" });
  let line = 0, at = -1;

  function hide() {
    ring.remove();
    tip.textContent = "";
  }

  function point(place) {
    const { width, height } = svg.viewBox.baseVal;
    const left = middle(x, place.x), top = middle(y, place.y);
    ring.setAttribute("cx", left);
    ring.setAttribute("cy", top);
    svg.append(ring);
    tip.textContent = say(place);
    tip.style.left = `${(100 * left) / width}%`;
    tip.style.top = `${(100 * top) / height}%`;
    tip.style.translate = `${left > width / 2 ? "calc(-100% - 12px)" : "12px"} -50%`;
  }

  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") hide();
    if (!step || !lines.length) return;
    event.preventDefault();
    line = (line + step[0] + lines.length) % lines.length;
    at = Math.max(0, Math.min(lines[line].length - 1, at + step[1]));
    point(lines[line][at]);
  });
  svg.addEventListener("blur", hide);
  svg.addEventListener("pointermove", hide);
}

function heatLimits(panels) {
  const values = panels.flatMap((panel) => panel.values ?? []).flat().filter((value) => value !== null && value > 0);
  return d3.extent(values);
}

function prepareFigure(figure) {
  const content = read(figure.querySelector(".figure-data"));
  const limits = heatLimits(content.panels);
  const box = figure.querySelector(".panels");
  legend(figure.querySelector(".legend"), content.panels, content.looks);
  const heat = content.panels.find((panel) => panel.kind === "heat");
  if (heat && limits[0] !== undefined) {
    figure.querySelector(".legend").append(Plot.legend({ color: { type: "log", scheme: "cividis", domain: limits, label: heat.value_label }, width: 280, ticks: logTicks(limits), tickFormat: named }));
  }
  for (const panel of content.panels) {
    const place = make("div", { className: "panel" });
    if (panel.title) place.append(make("p", {}, panel.title));
    const area = make("div", { className: "area" });
    const tip = make("div", { className: "tip" });
    tip.setAttribute("role", "status");
    area.append(tip);
    place.append(area);
    box.append(place);
    let before = 0;
    const draw = () => {
      const width = Math.round(place.clientWidth);
      if (!width || width === before) return;
      before = width;
      const { svg, places, say } = panel.kind === "heat" ? drawHeat(panel, width, limits) : drawLines(panel, width);
      withKeys(svg, panel, places, say, tip);
      area.querySelector(":scope > svg")?.remove();
      area.prepend(svg);
    };
    new ResizeObserver(draw).observe(place);
    draw();
  }
  const details = figure.querySelector(".values");
  details.addEventListener("toggle", () => details.open && !details.querySelector("table") && details.append(...content.panels.map(values)));
}

function values(panel) {
  const table = make("table");
  const head = (names) => table.createTHead().insertRow().append(...names.map((name) => make("th", { scope: "col" }, name)));
  const line = (cells) => cells.forEach((cell) => row.append(make("td", {}, typeof cell === "number" ? shown(cell) : cell ?? "–")));
  const body = table.createTBody();
  let row;
  if (panel.kind === "heat") {
    head([`${panel.y_label}, ${panel.x_label}`, ...panel.columns]);
    panel.rows.forEach((name, i) => { row = body.insertRow(); line([name, ...panel.values[i]]); });
  } else {
    head(["series", "kind", panel.x_label, panel.y_label, "low", "high"]);
    for (const one of panel.series) {
      one.x.forEach((x, i) => { row = body.insertRow(); line([told(one.name, one.note), one.style, x, panel.y_names[one.y[i]] ?? one.y[i], one.low?.[i], one.high?.[i]]); });
    }
  }
  table.createCaption().textContent = panel.title;
  return make("div", { tabIndex: 0 }, table);
}

// Rows of the store.

function spread({ values, runs }) {
  if (!runs) return values;
  const found = [];
  for (let i = 0; i < runs.length; i += 2) for (let k = 0; k < runs[i + 1]; k++) found.push(values[runs[i]]);
  return found;
}

function rowsOf(columns) {
  const spreads = columns.map(spread);
  const fields = columns.map((_, i) => `c${i}`);
  const count = spreads.length ? spreads[0].length : 0;
  const found = new Array(count);
  for (let at = 0; at < count; at++) {
    const row = {};
    for (let i = 0; i < fields.length; i++) row[fields[i]] = spreads[i][at];
    found[at] = row;
  }
  return found;
}

const written = (value) => (value === null ? "" : String(value)); // with all its digits

function widthOf({ name, values }) {
  let longest = name.length + 3;
  const every = Math.ceil(values.length / 2000); // enough to guess a width by
  for (let i = 0; i < values.length; i += every) {
    longest = Math.max(longest, written(values[i]).length);
  }
  return Math.min(320, Math.max(72, 22 + 7.4 * longest));
}

function numberTest(text) {
  const number = "(-?(?:\\d+\\.?\\d*|\\.\\d+)(?:e[-+]?\\d+)?)";
  const range = text.match(new RegExp(`^\\s*${number}\\s*\\.\\.\\s*${number}\\s*$`, "i"));
  if (range) return (value) => value !== null && value >= Number(range[1]) && value <= Number(range[2]);
  const one = text.match(new RegExp(`^\\s*(<=?|>=?|=)?\\s*${number}\\s*$`, "i"));
  if (!one) return null;
  const limit = Number(one[2]);
  const tests = { "<": (v) => v < limit, "<=": (v) => v <= limit, ">": (v) => v > limit, ">=": (v) => v >= limit };
  const test = tests[one[1]] ?? ((v) => v === limit);
  return (value) => value !== null && test(value);
}

function prepareRows() {
  const columns = read(document.getElementById("rows-data"));
  const all = rowsOf(columns);
  const fields = columns.map((_, i) => `c${i}`);
  const count = document.getElementById("rows-count");
  const input = document.getElementById("rows-filter");
  const tests = new Map();
  const collator = new Intl.Collator("en", { numeric: true });
  const emptyLast = (compare) => (a, b, _a, _b, _column, direction) => { // downwards, a and b come exchanged
    if (a !== null && b !== null) return compare(a, b);
    return ((a === null) - (b === null)) * (direction === "asc" ? 1 : -1);
  };

  function holds(wanted, value, _row, { numeric }) {
    const key = `${numeric} ${wanted}`;
    if (!tests.has(key)) {
      const every = words(wanted);
      const text = (v) => every.every((word) => written(v).toLowerCase().includes(word));
      tests.set(key, (numeric && numberTest(wanted)) || text);
    }
    return tests.get(key)(value);
  }

  const table = new Tabulator("#rows-table", {
    data: all, height: Math.min(640, 96 + 26 * Math.max(all.length, 3)), layout: "fitData", nestedFieldSeparator: false,
    placeholder: "No row matches.", headerSortClickElement: "header",
    columns: columns.map((column, i) => {
      const { numeric } = column;
      return {
        field: fields[i], title: " ", hozAlign: numeric ? "right" : "left", width: widthOf(column), minWidth: 40,
        titleFormatter: () => make("button", { type: "button" }, column.name),
        formatter: (cell) => document.createTextNode(written(cell.getValue())),
        sorter: emptyLast(numeric ? (a, b) => a - b : collator.compare),
        headerFilter: "input", headerFilterPlaceholder: "", headerFilterFunc: holds, headerFilterFuncParams: { numeric },
        headerFilterParams: { elementAttributes: { "aria-label": `Filter ${column.name}`, maxlength: "200" } },
      };
    }),
  });
  const tell = (left) => { count.textContent = left === all.length ? "" : `${left.toLocaleString("en")} of ${all.length.toLocaleString("en")} rows`; };
  table.on("dataFiltered", (_, rows) => tell(rows.length));
  table.on("tableBuilt", () => {
    performance.mark("rows-shown");
    document.getElementById("rows-table").dataset.ready = "";
  });
  let waiting;
  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const wanted = words(input.value);
      if (!wanted.length) table.clearFilter();
      else table.setFilter((row) => {
        const text = fields.map((field) => written(row[field])).join("\n").toLowerCase();
        return wanted.every((word) => text.includes(word));
      });
    }, 120);
  });
}

document.querySelectorAll(".table[data-ranks]").forEach(prepareTable);
document.querySelectorAll("figure").forEach(prepareFigure);
prepareRows();
