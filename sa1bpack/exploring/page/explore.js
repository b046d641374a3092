"use strict";
/* The page of `sa1bpack explore`. Parts, in this order: state and requests, the view (which images
   meet the filter), the grid, the filters, one image, saving, keys. */

const $ = (id) => document.getElementById(id);
// The name of this page: in addresses of pictures, which the browser then keeps, and with filters.
const session = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
const COUNT = "mask_count";
const BLOCK = 200; // images of one request
const GAP = 6; // pixels between cells
const CAPTION = 22; // pixels below a thumbnail

const state = {
  pack: null, // what /api/pack says
  axes: new Map(), // number → {title, edges, whole, counts}
  ranges: {}, // number → [low, high], null where there is no bound
  where: "",
  goodWhere: "", // the last one that the server took
  count: 0, // images of the view that are found so far
  isDone: false,
  blocks: new Map(), // number of a block → its rows [position, id, masks]
  generation: 0, // of the filter: answers for an earlier one are dropped
  picked: new Map(), // position → row
  onlyPicked: null, // the rows that are shown in place of the view
  focus: 0, // place in the view
  open: null, // place in the view of the image that is shown large
  thumbnailMasks: false,
  side: 180,
};

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer: has sa1bpack explore ended?");
  }
  const record = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(record.error), { status: answer.status });
  return record;
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";
function drawing(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const number = (value, digits = 6) =>
  value === null || value === undefined ? "–" : typeof value === "string" ? value
    : value.toLocaleString("en", { maximumSignificantDigits: Math.min(21, Math.max(digits, String(Math.trunc(value)).length)) });
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const facts = (pairs) => pairs.map(([name, value]) =>
  element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value })));

function later(milliseconds, call) { // once, after the last of several calls
  let timer;
  return (...values) => { clearTimeout(timer); timer = setTimeout(() => call(...values), milliseconds); };
}

/* ------------------------------------------------------------------------------------ the view */

function filterFields() {
  const fields = {};
  for (const [name, [low, high]] of Object.entries(state.ranges)) fields[name] = `${low ?? ""}:${high ?? ""}`;
  if (state.where.trim()) fields.where = state.where.trim();
  return fields;
}

function query(more = {}) {
  return new URLSearchParams({ ...filterFields(), ...more }).toString();
}

function filterChanged() {
  state.generation += 1;
  showRanges();
  followView(state.generation, true);
  showHistograms(state.generation);
}

function beginView(rows) { // once the server has taken the filter
  state.goodWhere = state.where;
  state.blocks.clear();
  state.blocks.set(0, rows);
  state.onlyPicked = null;
  state.focus = 0;
  history.replaceState(state.open === null ? history.state : null, "", `#${query()}`);
  if (state.open !== null) closeImage(); // its place was one of the view before
  grid.toTop();
  showPicked();
}

async function followView(generation, isFirst) {
  while (generation === state.generation) {
    let answer;
    try {
      const stop = isFirst ? BLOCK : 0;
      answer = await ask(`/api/rows?${query({ start: 0, stop, page: session })}`);
    } catch (error) {
      if (generation !== state.generation) return;
      showTrouble(error);
      $("clear-button").hidden = false;
      if (error.status === 400) state.where = state.goodWhere; // what is shown stays
      return;
    }
    if (generation !== state.generation) return;
    showTrouble(null);
    if (isFirst) beginView(answer.rows);
    isFirst = false;
    state.count = answer.count;
    state.isDone = answer.is_done;
    showCount(answer);
    grid.changed();
    if (answer.is_done) return;
    await new Promise((resolve) => setTimeout(resolve, 400));
  }
}

function showTrouble(error) {
  $("where-error").hidden = !error;
  $("where-error").textContent = error ? error.message : "";
  $("where-text").setAttribute("aria-invalid", Boolean(error));
}

function showCount(answer) {
  const all = state.pack.samples.toLocaleString("en");
  const found = element("b", { textContent: answer.count.toLocaleString("en") });
  const isAll = answer.is_done && answer.count === state.pack.samples;
  $("count").replaceChildren(found, isAll ? " images" : ` of ${all} images`);
  $("short-count").textContent = isAll ? all : `${answer.count.toLocaleString("en")} of ${all}`;
  $("progress").hidden = answer.is_done;
  $("progress").firstChild.style.width = `${(100 * answer.scanned) / answer.parts}%`;
  if (!answer.is_done) $("count").append(`, ${answer.scanned.toLocaleString("en")} of ${counted(answer.parts, "shard")} read`);
  $("clear-button").hidden = Object.keys(filterFields()).length === 0;
  showNotes(answer.notes);
}

function showNotes(notes) {
  const all = [...state.pack.notes, ...(state.unreadable || []), ...notes];
  $("notes").replaceChildren(...[...new Set(all)].map((text) => element("p", { textContent: text })));
}

const shownCount = () => (state.onlyPicked ? state.onlyPicked.length : state.count);

function rowAt(place) { // a row, or undefined while it is fetched
  if (state.onlyPicked) return state.onlyPicked[place];
  const block = Math.floor(place / BLOCK);
  const row = state.blocks.get(block)?.[place - block * BLOCK];
  if (!row) grid.fetchBlock(block);
  return row;
}

async function rowAtLast(place) {
  if (rowAt(place)) return rowAt(place);
  await grid.fetchBlock(Math.floor(place / BLOCK));
  return rowAt(place);
}

/* ------------------------------------------------------------------------------------ the grid

A browser cannot scroll over the 300 million pixels that 11 million thumbnails need. The spacer has at
most MOST pixels. The first and the last EDGE of them stand for themselves, and the rest stands for
the rows between. Small steps move the rows by as many pixels anywhere; when scrolling has ended, the
bar is put where it belongs, while the rows stay. */

const MOST = 4e6;
const EDGE = 1e5;

const grid = {
  box: $("grid"),
  cells: new Map(), // place → cell
  spare: [],
  columns: 1,
  rowHeight: 1,
  height: 0, // of all rows
  base: 0, // pixels from the top of the spacer to where it would be without the limit
  last: 0, // scrollTop at the last event
  pending: new Map(),

  layout() {
    const width = this.box.clientWidth - GAP;
    const wanted = innerWidth <= 760 ? 118 : state.side;
    const top = this.top();
    const first = this.rowHeight > 1 ? Math.floor(top / this.rowHeight) * this.columns : 0;
    this.columns = Math.max(1, Math.floor(width / (wanted + GAP)));
    this.side = Math.floor(width / this.columns) - GAP;
    this.rowHeight = Math.round(this.side * 0.8) + CAPTION + GAP;
    this.clear();
    this.changed();
    this.scrollTo(Math.floor(first / this.columns) * this.rowHeight);
  },

  changed() { // the number of images, or what is picked
    this.height = Math.ceil(shownCount() / this.columns) * this.rowHeight + GAP;
    $("spacer").style.height = `${Math.min(this.height, MOST)}px`;
    if (this.height <= MOST) this.base = 0;
    $("empty").hidden = shownCount() > 0 || !(state.isDone || state.onlyPicked);
    this.draw();
  },

  clear() {
    for (const cell of this.cells.values()) cell.remove();
    this.cells.clear();
    this.spare = [];
  },

  toTop() {
    this.clear();
    this.base = 0;
    this.last = 0;
    this.box.scrollTop = 0;
  },

  top() { return this.box.scrollTop + this.base; },

  barOf(top) { // where the bar belongs when rows begin at this pixel
    const room = this.height - this.box.clientHeight;
    const barRoom = MOST - this.box.clientHeight;
    if (this.height <= MOST || top <= EDGE) return top;
    if (room - top <= EDGE) return barRoom - (room - top);
    return EDGE + ((top - EDGE) / (room - 2 * EDGE)) * (barRoom - 2 * EDGE);
  },

  topOf(bar) { // its inverse
    const room = this.height - this.box.clientHeight;
    const barRoom = MOST - this.box.clientHeight;
    if (this.height <= MOST || bar <= EDGE) return bar;
    if (barRoom - bar <= EDGE) return room - (barRoom - bar);
    return EDGE + ((bar - EDGE) / (barRoom - 2 * EDGE)) * (room - 2 * EDGE);
  },

  scrollTo(top) {
    const room = Math.max(0, this.height - this.box.clientHeight);
    const target = Math.min(Math.max(0, top), room);
    this.box.scrollTop = Math.round(this.barOf(target));
    this.last = this.box.scrollTop;
    this.base = this.height <= MOST ? 0 : Math.round(target) - this.last;
    this.draw();
  },

  scrolled() {
    const bar = this.box.scrollTop;
    const isJump = Math.abs(bar - this.last) > 3 * this.box.clientHeight;
    this.last = bar;
    if (this.height > MOST && isJump) this.base = Math.round(this.topOf(bar)) - bar;
    this.draw();
    this.settle();
  },

  settle: later(150, () => {
    if (grid.height > MOST) grid.scrollTo(grid.top());
    grid.draw();
  }),

  draw() {
    const top = this.top();
    const view = this.box.clientHeight;
    const ahead = this.rowHeight * 2;
    const firstRow = Math.max(0, Math.floor((top - ahead) / this.rowHeight));
    const lastRow = Math.ceil((top + view + ahead) / this.rowHeight);
    const first = firstRow * this.columns;
    const stop = Math.min(shownCount(), lastRow * this.columns);
    for (const [place, cell] of this.cells) {
      if (place < first || place >= stop) {
        this.cells.delete(place);
        cell.firstChild.removeAttribute("src");
        cell.hidden = true;
        this.spare.push(cell);
      }
    }
    for (let place = first; place < stop; place++) this.put(place);
    this.load();
  },

  put(place) {
    let cell = this.cells.get(place);
    if (!cell) {
      cell = this.spare.pop() || this.make();
      cell.hidden = false;
      cell.place = place;
      cell.position = null;
      this.cells.set(place, cell);
    }
    const x = (place % this.columns) * (this.side + GAP) + GAP;
    const y = Math.floor(place / this.columns) * this.rowHeight + GAP - this.base;
    cell.style.transform = `translate(${x}px, ${y}px)`;
    cell.style.width = `${this.side}px`;
    cell.style.height = `${this.rowHeight - GAP}px`;
    cell.classList.toggle("focus", place === state.focus);
    const row = rowAt(place);
    if (row && cell.position !== row[0]) {
      const [image, caption] = cell.children;
      cell.position = row[0];
      cell.classList.remove("broken");
      image.removeAttribute("src");
      caption.firstChild.textContent = row[1];
      caption.lastChild.textContent = row[2] === null ? "" : row[2].toLocaleString("en");
      caption.lastChild.className = row[2] === null ? "" : row[2] === 1 ? "one" : "several";
      cell.setAttribute("aria-label", `Image ${row[1]}`);
    }
    const isPicked = Boolean(row) && state.picked.has(row[0]);
    cell.classList.toggle("picked", isPicked);
    cell.setAttribute("aria-selected", isPicked);
  },

  make() {
    const image = element("img", { alt: "", draggable: false, decoding: "async" });
    image.addEventListener("error", () => image.parentNode.classList.toggle("broken", image.hasAttribute("src")));
    const caption = element("span", {}, element("b"), element("em"));
    const cell = element("div", { className: "cell" }, image, caption, element("i", { textContent: "✓", title: "Pick (x)" }));
    cell.setAttribute("role", "option");
    this.box.append(cell);
    return cell;
  },

  load: later(60, () => { // not while the rows fly by
    const side = state.pack.thumbnail_sides.find((side) => side >= grid.side * Math.min(devicePixelRatio, 2) * 0.9)
      || state.pack.thumbnail_sides.at(-1);
    const masks = state.thumbnailMasks ? "&masks=1" : "";
    for (const cell of grid.cells.values()) {
      if (cell.position === null) continue;
      const address = `/thumbnail?index=${cell.position}&side=${side}${masks}&v=${session}`;
      if (cell.firstChild.getAttribute("src") !== address) cell.firstChild.src = address;
    }
  }),

  fetchBlock(block) {
    const key = `${state.generation} ${block}`;
    if (this.pending.has(key)) return this.pending.get(key);
    const generation = state.generation;
    const start = block * BLOCK;
    const done = ask(`/api/rows?${query({ start, stop: start + BLOCK, page: session })}`).then((answer) => {
      if (generation !== state.generation) return;
      state.blocks.set(block, answer.rows);
      if (state.blocks.size > 300) state.blocks.delete(state.blocks.keys().next().value);
      this.draw();
    }).catch((error) => { if (generation === state.generation) showTrouble(error); })
      .finally(() => this.pending.delete(key));
    this.pending.set(key, done);
    return done;
  },

  focusOn(place) {
    const most = shownCount() - 1;
    if (most < 0) return;
    state.focus = Math.min(Math.max(0, place), most);
    const y = Math.floor(state.focus / this.columns) * this.rowHeight;
    const view = this.box.clientHeight;
    if (y < this.top()) this.scrollTo(y);
    else if (y + this.rowHeight + GAP > this.top() + view) this.scrollTo(y + this.rowHeight + GAP - view);
    else this.draw();
  },
};

grid.box.addEventListener("scroll", () => grid.scrolled(), { passive: true });
grid.box.addEventListener("click", (event) => {
  const cell = event.target.closest(".cell");
  if (!cell || cell.position === null) return;
  state.focus = cell.place;
  if (event.target.tagName === "I" || event.shiftKey || event.ctrlKey || event.metaKey) pick(rowAt(cell.place));
  else openImage(cell.place);
  grid.draw();
});

function pick(row) {
  if (!row) return;
  if (!state.picked.delete(row[0])) state.picked.set(row[0], row);
  showPicked();
}

function showPicked() {
  const count = state.picked.size;
  $("picked-button").hidden = count === 0 && !state.onlyPicked;
  $("picked-button").textContent = `${count.toLocaleString("en")} picked`;
  $("picked-button").setAttribute("aria-pressed", Boolean(state.onlyPicked));
  const isPicked = detail.row !== null && state.picked.has(detail.row[0]);
  $("pick-button").setAttribute("aria-pressed", isPicked);
  $("pick-button").textContent = isPicked ? "Picked" : "Pick";
  grid.draw();
}

function togglePicked() {
  if (!state.onlyPicked && !state.picked.size) return;
  state.onlyPicked = state.onlyPicked ? null : [...state.picked.values()].sort((a, b) => a[0] - b[0]);
  state.focus = 0;
  grid.toTop();
  grid.changed();
  showPicked();
}

/* ------------------------------------------------------------------------------------ the filters */

function barsPath(counts, ceiling) { // 100 high, one wide per bin; what is not zero can be seen
  return counts.map((count, bin) => {
    const height = count ? Math.max(2, (100 * count) / ceiling) : 0;
    return `M${bin + 0.06} 100v${-height}h.88v${height}z`;
  }).join("");
}

function makeAxis(axis) {
  const bins = axis.counts.length;
  const chart = drawing("svg", { viewBox: `0 0 ${bins} 100`, preserveAspectRatio: "none", role: "img" });
  const all = drawing("path", { class: "all", d: barsPath(axis.counts, Math.max(1, ...axis.counts)) });
  const now = drawing("path", { class: "now" });
  const before = drawing("rect", { class: "cut", y: 0, height: 100, x: 0 });
  const after = drawing("rect", { class: "cut", y: 0, height: 100 });
  chart.append(all, now, before, after);
  const sliders = [0, bins].map((value, end) => {
    const slider = element("input", { type: "range", min: 0, max: bins, step: 1, value });
    slider.setAttribute("aria-label", `${axis.title}, ${end ? "at most" : "at least"}`);
    return slider;
  });
  const fields = ["at least", "at most"].map((text) => {
    const field = element("input", { type: "text", inputMode: "decimal", autocomplete: "off" });
    field.setAttribute("aria-label", `${axis.title}, ${text}`);
    return field;
  });
  fields[0].placeholder = number(axis.edges[0]);
  fields[1].placeholder = number(axis.edges[bins]);
  const amount = element("span");
  const box = element("section", { className: "axis" },
    element("h3", { textContent: axis.title }, amount), chart,
    element("div", { className: "range" }, ...sliders),
    element("div", { className: "ends" }, fields[0], "to", fields[1]));
  Object.assign(axis, { chart, now, before, after, sliders, fields, amount });

  const slid = (isLast) => {
    let [low, high] = sliders.map((slider) => Number(slider.value));
    if (low > high) { [low, high] = isLast ? [high, high] : [low, low]; sliders[0].value = low; sliders[1].value = high; }
    const upper = axis.whole ? Math.ceil(axis.edges[high]) - 1 : axis.edges[high];
    const lower = axis.whole ? Math.ceil(axis.edges[low]) : axis.edges[low];
    setRange(axis.name, low === 0 ? null : lower, high === bins ? null : Math.max(upper, lower));
  };
  sliders[0].addEventListener("input", () => slid(false));
  sliders[1].addEventListener("input", () => slid(true));
  for (const field of fields) {
    field.addEventListener("change", () => {
      const [low, high] = fields.map((each) => {
        const text = each.value.replaceAll(",", "").trim();
        return text === "" || Number.isNaN(Number(text)) ? null : Number(text);
      });
      setRange(axis.name, low, low !== null && high !== null && high < low ? low : high);
    });
  }
  return box;
}

const soon = later(100, filterChanged);

function setRange(name, low, high) {
  if (low === null && high === null) delete state.ranges[name];
  else state.ranges[name] = [low, high];
  showRanges();
  soon();
}

function showRanges() {
  for (const axis of state.axes.values()) {
    const [low, high] = state.ranges[axis.name] || [null, null];
    const bins = axis.counts.length;
    const at = (value) => { // place on the chart, in bins
      const bin = Math.max(0, Math.min(bins - 1, axis.edges.findLastIndex((edge) => edge <= value)));
      const [left, right] = axis.edges.slice(bin, bin + 2);
      return Math.max(0, Math.min(bins, bin + (value - left) / (right - left)));
    };
    const first = low === null ? 0 : at(low);
    const last = high === null ? bins : at(axis.whole ? high + 1 : high);
    axis.before.setAttribute("width", first);
    axis.after.setAttribute("x", last);
    axis.after.setAttribute("width", Math.max(0, bins - last));
    axis.sliders[0].value = Math.round(first);
    axis.sliders[1].value = Math.round(last);
    axis.fields[0].value = low ?? "";
    axis.fields[1].value = high ?? "";
  }
  detail.showInside();
}

async function showHistograms(generation) {
  if (!state.axes.size) return;
  let answer;
  try {
    answer = await ask(`/api/histograms?${query()}`);
  } catch {
    return; // the view says what is wrong
  }
  if (generation !== state.generation) return;
  for (const [name, axis] of state.axes) {
    const counts = answer.counts[name];
    axis.now.setAttribute("d", barsPath(counts, Math.max(1, ...counts)));
    const sum = counts.reduce((total, count) => total + count, 0);
    axis.amount.textContent = counted(sum, name === COUNT ? "image" : "mask");
    axis.chart.setAttribute("aria-label", `${axis.title}: ${axis.amount.textContent}`);
  }
}

async function loadAxes() {
  const answer = await ask("/api/axes");
  for (const axis of answer.axes) if (axis.counts.length) state.axes.set(axis.name, axis);
  $("axes").replaceChildren(...[...state.axes.values()].map(makeAxis));
  $("coverage").textContent = `Histograms: ${answer.coverage}. Grey: without a filter.`;
  state.unreadable = answer.unreadable;
  showRanges();
  showHistograms(state.generation);
}

$("where").addEventListener("submit", (event) => {
  event.preventDefault();
  state.where = $("where-text").value;
  filterChanged();
  grid.box.focus();
});
const COMPLETE = /^\s*([\w()\s]+?(<=|>=|==|!=|<|>)\s*[-+]?\d[\d_]*(\.\d*)?(e[-+]?\d+)?((\s+and\s+|\s*&\s*)(?=\S)|\s*$))*$/i;
$("where-text").addEventListener("input", later(400, () => { // what is half written waits for Enter
  const text = $("where-text").value;
  if (text.trim() === state.where.trim() || !COMPLETE.test(text)) return;
  state.where = $("where-text").value;
  filterChanged();
}));
$("clear-button").addEventListener("click", () => {
  state.ranges = {};
  state.where = $("where-text").value = "";
  filterChanged();
});

function toggleFilters() {
  const isClosed = $("filters").classList.toggle("closed");
  $("filters-button").setAttribute("aria-expanded", !isClosed);
  grid.layout();
}

/* ------------------------------------------------------------------------------------ one image */

const MODES = ["outlines", "areas", "none"];
const PHONE = matchMedia("(max-width: 760px)");

const detail = {
  row: null,
  sample: null,
  chosen: null, // the mask whose numbers are shown
  mode: "outlines",
  scale: 1, // of the picture, beyond the one at which it fits
  x: 0, y: 0,
  pointers: new Map(),

  async show(row) {
    this.row = row;
    this.sample = null;
    this.chosen = null;
    this.scale = 1;
    $("detail").hidden = false;
    $("detail-title").textContent = row[1];
    $("trouble").hidden = true;
    $("tip").hidden = true;
    for (const id of ["masks", "mask", "texts", "facts", "features"]) $(id).replaceChildren();
    $("facts-box").hidden = true;
    $("features-box").hidden = true;
    $("table").tHead.replaceChildren();
    $("table").tBodies[0].replaceChildren();
    $("photo").removeAttribute("src");
    $("overlay").removeAttribute("src");
    showPicked();
    let sample;
    try {
      sample = await ask(`/api/sample?index=${row[0]}&v=${session}`);
    } catch (error) {
      if (this.row !== row) return;
      $("trouble").hidden = false;
      $("trouble").textContent = error.message;
      return;
    }
    if (this.row !== row) return;
    this.sample = sample;
    $("photo").src = `/image?index=${row[0]}&v=${session}`;
    $("photo").alt = `Image ${sample.id}, ${counted(sample.order.length, "mask")}`;
    this.fit();
    this.drawMasks();
    this.fillPanel();
    this.showInside();
  },

  drawMasks() {
    const { width, height, unit, outlines, colours, order } = this.sample;
    $("masks").setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.paths = [];
    const group = drawing("g", { transform: `scale(${unit[0]} ${unit[1]})` });
    for (const mask of order) { // the largest first, so smaller ones are above it
      const path = drawing("path", { d: outlines[mask] });
      path.style.setProperty("--colour", colours[mask]);
      path.mask = mask;
      this.paths[mask] = path;
      group.append(path);
    }
    $("masks").replaceChildren(group);
    this.setMode(this.mode);
  },

  setMode(mode) {
    this.mode = mode;
    $("masks").setAttribute("class", mode);
    $("mode-button").textContent = { outlines: "Outlines", areas: "Areas", none: "No masks" }[mode];
  },

  nextMode() { this.setMode(MODES[(MODES.indexOf(this.mode) + 1) % MODES.length]); },

  values(name) { return this.sample.numbers.find((each) => each.name === name)?.values; },

  fillPanel() {
    const { sample } = this;
    $("facts").replaceChildren(...facts(Object.entries(sample.facts)));
    $("facts-box").hidden = false;
    const texts = sample.features.filter((feature) => "text" in feature);
    $("texts").replaceChildren(...texts.map((feature) =>
      element("p", {}, element("b", { textContent: `${feature.name}: ` }), element("bdi", { textContent: feature.text }))));
    const arrays = sample.features.filter((feature) => "values" in feature);
    $("features").replaceChildren(...arrays.map((feature) => {
      const text = feature.values.map((value) => number(value, 4)).join(" ");
      const range = feature.range ? `, ${feature.range.map((value) => number(value, 4)).join(" … ")} (least, mean, most)` : "";
      return element("div", {}, element("b", { textContent: feature.name }), ` ${feature.type}${range}`,
        element("code", { textContent: feature.more ? `${text} … ${number(feature.more)} more` : text }),
        ...(feature.is_map ? [this.mapOf(feature)] : []));
    }));
    $("features-box").hidden = !arrays.length;
    const columns = [{ heading: "area", values: this.values("area") }, ...sample.numbers.filter((each) => each.heading)];
    if (!sample.order.length) {
      $("mask").textContent = "This image has no masks.";
      return;
    }
    $("table").tHead.replaceChildren(element("tr", {}, element("th", { textContent: "mask" }),
      ...columns.map((column) => element("th", { textContent: column.heading }))));
    this.lines = [];
    $("table").tBodies[0].replaceChildren(...sample.order.map((mask) => {
      const swatch = element("span", { className: "swatch" });
      swatch.style.background = sample.colours[mask];
      const line = element("tr", {}, element("td", {}, swatch, String(mask)),
        ...columns.map((column) => element("td", { textContent: number(column.values[mask], 4) })));
      line.mask = mask;
      this.lines[mask] = line;
      return line;
    }));
  },

  mapOf(feature) { // a picture, which a click lays over the photograph
    const address = `/feature?index=${this.row[0]}&name=${feature.name}&v=${session}`;
    const picture = element("img", { src: address, alt: `${feature.name} as a picture`, title: "Lay it over the image" });
    picture.addEventListener("click", () => {
      const isOver = $("overlay").getAttribute("src") === address;
      if (isOver) $("overlay").removeAttribute("src");
      else $("overlay").src = address;
    });
    return picture;
  },

  showInside() { // masks that no slider excludes; the others are faint
    if (!this.sample || !this.paths) return;
    const ranges = Object.entries(state.ranges).filter(([name]) => name !== COUNT);
    for (const mask of this.sample.order) {
      const isOutside = ranges.some(([name, [low, high]]) => {
        const value = this.values(name)?.[mask];
        return !Number.isFinite(value) || value < (low ?? -Infinity) || value > (high ?? Infinity);
      });
      this.paths[mask].classList.toggle("outside", isOutside);
      this.lines[mask].classList.toggle("outside", isOutside);
    }
  },

  light(mask, isScrolled = false) {
    if (!this.sample) return;
    for (const marked of [...$("masks").querySelectorAll(".lit"), ...$("table").querySelectorAll(".lit")]) marked.classList.remove("lit");
    $("masks").classList.toggle("lights", mask !== null);
    $("stage").classList.toggle("on-mask", mask !== null);
    if (mask === null) return;
    this.paths[mask].classList.add("lit");
    this.lines[mask].classList.add("lit");
    if (isScrolled && !PHONE.matches && this.isTableRead()) this.lines[mask].scrollIntoView({ block: "nearest" });
  },

  isTableRead() { // scrolled to: what is above it, such as a caption, would move away under the reader
    return $("table").getBoundingClientRect().top <= $("panel-head").getBoundingClientRect().bottom;
  },

  choose(mask) {
    const { sample } = this;
    if (!sample) return;
    if (this.chosen !== null) {
      this.lines[this.chosen].classList.remove("chosen");
      $("masks").querySelector("g.marks").remove();
    }
    this.chosen = mask;
    $("mask").replaceChildren();
    if (mask === null) return;
    this.lines[mask].classList.add("chosen");
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = sample.colours[mask];
    const pairs = sample.numbers.map((each) => {
      const value = each.values[mask];
      return [each.title, Array.isArray(value) ? value.map((part) => part?.toFixed(3).replace(/\.?0+$/, "") ?? "–").join(", ") : number(value, 8)];
    });
    for (const feature of sample.features) {
      if (!("rows" in feature)) continue;
      const row = feature.rows[mask];
      pairs.push([feature.name, typeof row === "string" ? row : row.map((value) => number(value, 4)).join(" ")]);
    }
    const share = (100 * this.values("area")[mask]) / (sample.width * sample.height);
    pairs.push(["of the image", `${number(share, 3)} %`]);
    $("mask").append(element("h3", {}, swatch, `Mask ${mask}`), element("dl", { className: "facts" }, ...facts(pairs)));
    const marks = drawing("g", { class: "marks" }); // above all masks, and not under the pointer
    const above = drawing("g", { transform: `scale(${sample.unit[0]} ${sample.unit[1]})` });
    const outline = this.paths[mask].cloneNode();
    outline.setAttribute("class", "chosen");
    above.append(outline);
    marks.append(above);
    const [x, y, w, h] = this.values("bbox")[mask];
    if ([x, y, w, h].every(Number.isFinite)) marks.append(drawing("rect", { x, y, width: Math.max(0, w + 1), height: Math.max(0, h + 1) }));
    const [px, py] = this.values("point_coords")?.[mask] ?? [];
    if (Number.isFinite(px) && Number.isFinite(py)) {
      const circle = drawing("circle", { cx: px, cy: py });
      circle.style.setProperty("--radius", `${Math.max(sample.width, sample.height) / 220}px`);
      marks.append(circle);
    }
    $("masks").append(marks);
    $("panel").scrollTo({ top: 0 });
  },

  step(by) { // to the next mask of the table
    if (!this.sample?.order.length) return;
    const place = this.chosen === null ? (by > 0 ? -1 : 0) : this.sample.order.indexOf(this.chosen);
    const count = this.sample.order.length;
    const mask = this.sample.order[(place + by + count) % count];
    this.choose(mask);
    this.light(mask);
    $("tip").hidden = true;
  },

  fit() {
    if (!this.sample) return;
    const { width, height } = this.sample;
    const stage = $("stage");
    const fitting = Math.min(stage.clientWidth / width, stage.clientHeight / height);
    this.width = width * fitting;
    this.height = height * fitting;
    $("picture").style.width = `${this.width}px`;
    $("picture").style.height = `${this.height}px`;
    this.scale = 1;
    this.move((stage.clientWidth - this.width) / 2, (stage.clientHeight - this.height) / 2);
  },

  move(x, y) {
    const stage = $("stage");
    const width = this.width * this.scale;
    const height = this.height * this.scale;
    const within = (value, size, room) => size <= room ? (room - size) / 2 : Math.min(0, Math.max(room - size, value));
    this.x = within(x, width, stage.clientWidth);
    this.y = within(y, height, stage.clientHeight);
    $("tip").hidden = true; // another mask may be under the pointer now
    $("masks").style.setProperty("--zoom", this.scale); // lines are as thin at any scale
    $("picture").style.transform = `translate(${this.x}px, ${this.y}px) scale(${this.scale})`;
    $("picture").classList.toggle("pixels", this.scale * this.width > 2.5 * ($("photo").naturalWidth || Infinity));
  },

  zoom(factor, x = $("stage").clientWidth / 2, y = $("stage").clientHeight / 2) {
    if (!this.sample) return;
    const scale = Math.min(60, Math.max(1, this.scale * factor));
    const change = scale / this.scale;
    this.scale = scale;
    this.move(x - (x - this.x) * change, y - (y - this.y) * change);
  },
};

async function openImage(place, isPushed = true) {
  const row = await rowAtLast(place);
  if (!row) return;
  if (isPushed) history[state.open === null ? "pushState" : "replaceState"]({ place }, "", location.hash);
  state.open = place;
  state.focus = place;
  $("previous-button").disabled = place <= 0;
  $("next-button").disabled = place >= shownCount() - 1;
  await detail.show(row);
  const next = place + 1 < shownCount() ? rowAt(place + 1) : null;
  if (next && state.open === place) { // for whoever goes on
    new Image().src = `/image?index=${next[0]}&v=${session}`;
    fetch(`/api/sample?index=${next[0]}&v=${session}`).catch(() => {});
  }
}

function closeImage() {
  state.open = null;
  detail.row = null;
  detail.sample = null;
  $("detail").hidden = true;
  $("photo").removeAttribute("src");
  $("masks").replaceChildren();
  grid.focusOn(state.focus);
  if (document.activeElement !== $("where-text")) grid.box.focus();
  showPicked();
}

addEventListener("popstate", (event) => {
  if (event.state?.place !== undefined) openImage(event.state.place, false);
  else if (state.open !== null) closeImage();
});

const leave = () => (history.state?.place !== undefined ? history.back() : closeImage());
const beside = (by) => {
  const place = state.open + by;
  if (place >= 0 && place < shownCount()) openImage(place);
};

const stage = $("stage");
let wasMoved = false;
stage.addEventListener("wheel", (event) => {
  event.preventDefault();
  const corner = stage.getBoundingClientRect();
  detail.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.002)), event.clientX - corner.left, event.clientY - corner.top);
}, { passive: false });
stage.addEventListener("pointerdown", (event) => {
  if (event.target.closest("button")) return;
  detail.pointers.set(event.pointerId, [event.clientX, event.clientY]);
  wasMoved = false;
});
addEventListener("pointermove", (event) => {
  const before = detail.pointers.get(event.pointerId);
  if (!before) return;
  const others = [...detail.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
  const now = [event.clientX, event.clientY];
  const distance = Math.hypot(now[0] - before[0], now[1] - before[1]);
  if (!wasMoved && distance < 4) return;
  wasMoved = true;
  stage.classList.add("panning");
  if (others.length) {
    const corner = stage.getBoundingClientRect();
    const [other] = others;
    const grown = Math.hypot(now[0] - other[0], now[1] - other[1]) / Math.max(1, Math.hypot(before[0] - other[0], before[1] - other[1]));
    detail.zoom(grown, (now[0] + other[0]) / 2 - corner.left, (now[1] + other[1]) / 2 - corner.top);
  } else if (detail.sample) {
    detail.move(detail.x + now[0] - before[0], detail.y + now[1] - before[1]);
  }
  detail.pointers.set(event.pointerId, now);
});
for (const name of ["pointerup", "pointercancel"]) {
  addEventListener(name, (event) => {
    detail.pointers.delete(event.pointerId);
    if (!detail.pointers.size) stage.classList.remove("panning");
  });
}
stage.addEventListener("click", (event) => {
  if (wasMoved || event.target.closest("button")) return;
  const mask = event.target.mask ?? null;
  detail.choose(mask === detail.chosen ? null : mask);
});
stage.addEventListener("dblclick", (event) => {
  const corner = stage.getBoundingClientRect();
  if (detail.scale > 1) detail.fit();
  else detail.zoom(3, event.clientX - corner.left, event.clientY - corner.top);
});
stage.addEventListener("pointerover", (event) => {
  if (event.pointerType === "mouse") detail.light(event.target.mask ?? null, true);
});
stage.addEventListener("mousemove", (event) => {
  const mask = event.target.mask;
  $("tip").hidden = mask === undefined || detail.mode === "none" || !detail.sample;
  if ($("tip").hidden) return;
  const corner = stage.getBoundingClientRect();
  const area = detail.values("area")[mask];
  const iou = detail.values("predicted_iou")?.[mask];
  $("tip").textContent = `${mask}: ${number(area)} px${iou === undefined ? "" : `, IoU ${number(iou, 3)}`}`;
  $("tip").style.transform = `translate(${event.clientX - corner.left + 14}px, ${event.clientY - corner.top + 14}px)`;
});
stage.addEventListener("pointerleave", () => { $("tip").hidden = true; detail.light(null); });
$("table").addEventListener("pointerover", (event) => detail.light(event.target.closest("tbody tr")?.mask ?? null));
$("table").addEventListener("pointerleave", () => detail.light(null));
$("table").addEventListener("click", (event) => {
  const line = event.target.closest("tbody tr");
  if (line) detail.choose(line.mask === detail.chosen ? null : line.mask);
});
$("close-button").addEventListener("click", leave);
$("previous-button").addEventListener("click", () => beside(-1));
$("next-button").addEventListener("click", () => beside(1));
$("pick-button").addEventListener("click", () => pick(detail.row));
$("mode-button").addEventListener("click", () => detail.nextMode());
$("photo").addEventListener("load", () => detail.sample && detail.move(detail.x, detail.y));
$("photo").addEventListener("error", () => {
  if (!$("photo").hasAttribute("src")) return;
  $("trouble").hidden = false;
  $("trouble").textContent = "The pixels cannot be read.";
});

/* ------------------------------------------------------------------------------------ saving */

function openSave() {
  const hasFilter = Object.keys(filterFields()).length > 0;
  const so_far = state.isDone ? "" : ", still being found";
  $("save-filter").textContent = hasFilter
    ? `what meets the filter (${counted(state.count, "image")}${so_far})` : `everything (${counted(state.count, "image")})`;
  $("save-picked").textContent = `what is picked (${counted(state.picked.size, "image")})`;
  const [filter, picked] = $("save-form").elements.what;
  picked.disabled = state.picked.size === 0;
  (picked.disabled ? filter : picked).checked = true;
  $("save-error").hidden = true;
  $("save-done").hidden = true;
  overwrite = false;
  $("save-submit").textContent = "Save";
  $("save").showModal();
  $("save-name").select();
}

let overwrite = false;
$("save-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("save-name").value.trim();
  const isPicked = $("save-form").elements.what.value === "picked";
  const record = isPicked ? { name, overwrite, positions: [...state.picked.keys()] } : { name, overwrite, filter: filterFields() };
  $("save-done").hidden = true;
  try {
    const saved = await ask("/api/save", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(record) });
    $("save-error").hidden = true;
    $("save-done").replaceChildren(`${counted(saved.samples, "image")} in ${saved.path}`,
      element("code", { textContent: `ds = sa1bpack.open(${JSON.stringify(saved.path)})` }));
    $("save-done").hidden = false;
    overwrite = false;
    $("save-submit").textContent = "Save";
  } catch (error) {
    $("save-error").hidden = false;
    $("save-error").textContent = error.message;
    const isThere = error.status === 409 && error.message.endsWith(" exists");
    overwrite = isThere;
    $("save-submit").textContent = isThere ? "Replace it" : "Save";
  }
});
$("save-name").addEventListener("input", () => { overwrite = false; $("save-submit").textContent = "Save"; });
$("save-close").addEventListener("click", () => $("save").close());

/* ------------------------------------------------------------------------------------ keys */

function setSide(side) {
  state.side = Math.min(330, Math.max(90, side));
  $("size-range").value = state.side;
  grid.layout();
}

function toggleThumbnailMasks() {
  state.thumbnailMasks = !state.thumbnailMasks;
  $("masks-button").setAttribute("aria-pressed", state.thumbnailMasks);
  grid.load();
}

const page = () => Math.max(1, Math.floor(grid.box.clientHeight / grid.rowHeight)) * grid.columns;
const IN_GRID = {
  ArrowRight: () => grid.focusOn(state.focus + 1), ArrowLeft: () => grid.focusOn(state.focus - 1),
  ArrowDown: () => grid.focusOn(state.focus + grid.columns), ArrowUp: () => grid.focusOn(state.focus - grid.columns),
  j: () => grid.focusOn(state.focus + 1), k: () => grid.focusOn(state.focus - 1),
  PageDown: () => grid.focusOn(state.focus + page()), PageUp: () => grid.focusOn(state.focus - page()),
  Home: () => grid.focusOn(0), End: () => grid.focusOn(shownCount() - 1),
  Enter: () => openImage(state.focus), x: () => pick(rowAt(state.focus)), m: toggleThumbnailMasks,
  "+": () => setSide(state.side + 30), "-": () => setSide(state.side - 30),
  Escape: () => { if (state.onlyPicked) togglePicked(); },
};
const IN_DETAIL = {
  ArrowRight: () => beside(1), ArrowLeft: () => beside(-1), j: () => beside(1), k: () => beside(-1),
  ArrowDown: () => detail.step(1), ArrowUp: () => detail.step(-1),
  Escape: () => (detail.chosen === null ? leave() : (detail.choose(null), detail.light(null))),
  x: () => pick(detail.row), m: () => detail.nextMode(),
  "+": () => detail.zoom(1.5), "-": () => detail.zoom(1 / 1.5), 0: () => detail.fit(),
};
const EVERYWHERE = {
  "/": () => $("where-text").select(), f: toggleFilters, p: () => { if (state.open === null) togglePicked(); },
  s: openSave, "?": () => $("help").showModal(),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const target = event.target;
  if (target.tagName === "INPUT" && (target.type === "text" || event.key.startsWith("Arrow"))) {
    if (event.key === "Escape") grid.box.focus();
    return;
  }
  if (event.key === "Enter" && ["BUTTON", "SUMMARY"].includes(target.tagName)) return;
  const call = (state.open === null ? IN_GRID : IN_DETAIL)[event.key] || EVERYWHERE[event.key];
  if (!call) return;
  event.preventDefault();
  call();
});

$("filters-button").addEventListener("click", toggleFilters);
$("masks-button").addEventListener("click", toggleThumbnailMasks);
$("picked-button").addEventListener("click", togglePicked);
$("save-button").addEventListener("click", openSave);
$("help-button").addEventListener("click", () => $("help").showModal());
$("size-range").addEventListener("input", () => setSide(Number($("size-range").value)));
new ResizeObserver(later(80, () => { if (state.pack) { grid.layout(); detail.fit(); } })).observe(document.body);

async function start() {
  const fields = new URLSearchParams(location.hash.slice(1));
  for (const [name, text] of fields) {
    if (name === "where") state.where = $("where-text").value = text;
    else state.ranges[name] = text.split(":").map((bound) => (bound === "" ? null : Number(bound)));
  }
  history.replaceState(null, "", location.hash || "#");
  $("size-range").value = state.side;
  if (PHONE.matches) {
    $("filters").classList.add("closed");
    $("filters-button").setAttribute("aria-expanded", false);
  }
  try {
    state.pack = await ask("/api/pack");
  } catch (error) {
    showTrouble(error);
    return;
  }
  const { pack } = state;
  document.title = `${pack.title} – sa1bpack`;
  $("title").textContent = pack.title;
  $("title").title = pack.packs.join("\n");
  $("save-folder").textContent = pack.folder;
  const pairs = [["pack", pack.packs.join(", ") + (pack.packs_more ? ` and ${pack.packs_more} more` : "")]];
  if (pack.masks !== null) pairs.push(["masks", number(pack.masks)]);
  if (pack.rule) pairs.push(["masks with", pack.rule]);
  if (!pack.is_complete) pairs.push(["state", "not complete"]);
  pairs.push(["outlines", pack.exact ? "exact, in source pixels" : `of the grid of ${pack.mask_size} cells`]);
  if (pack.features.length) pairs.push(["features", pack.features.join("; ")]);
  $("about").replaceChildren(...facts(pairs));
  $("help-names").replaceChildren(...facts([
    ["of an image", pack.numbers.join(", ")],
    ["of its masks", `${pack.reductions.join(", ")} of ${pack.mask_numbers.join(", ")}, as in max(area)`],
    ["of features", "NAME == 'text', NAME.present"],
    ["example", "max(area) > 1e6 & mask_count <= 50"],
  ]));
  const examples = ["mask_count >= 100", "max(area) > 1000000", "height > 2000"];
  if (pack.mask_numbers.includes("predicted_iou")) examples.splice(2, 0, "min(predicted_iou) < 0.9");
  $("where-examples").replaceChildren(...examples
    .map((value) => element("option", { value })));
  grid.layout();
  filterChanged();
  grid.box.focus();
  loadAxes().catch((error) => { $("coverage").textContent = error.message; });
}
start();
