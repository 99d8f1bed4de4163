// State: the visible range, the lit rectangles, and the content of the panel.

const whole = await loadModel();
let model = whole; // or the model with folded loops
let modes = colourModes(model);
const stage = document.getElementById("stage");
const base = document.getElementById("base");
const overlay = document.getElementById("overlay");
const panel = document.getElementById("panel");
const tip = document.getElementById("tip");
const search = document.getElementById("search");
const found = document.getElementById("found");
const foldButton = document.getElementById("fold");
const home = { t0: 0, t1: Math.max(model.duration, 1), a0: 0, a1: Math.max(model.height, hasBudgetLine(model) ? Number(model.budget) : 0) * 1.07 };
const curveTop = Math.max(...model.arenas.map(({ begin, end }) => end - begin), model.figures.arena, model.peak.bytes, 1) * 1.22;
const state = {
  view: { ...home },
  mode: modes[0],
  hover: -1,
  pointer: null,
  place: -1, // the selected placement
  point: -1, // or the selected point of time
  span: null, // or a span of it, [begin, end)
  reuse: null,
  ring: [], // all placements of the selected value, or of the values a selected pointer may be bound to
  matches: null, // placements whose name contains the search text
  match: -1,
};
let panels = layout(800, 600, 1, 21, bandRows(whole) + scopeRows(whole));
let look = theme();
let colours = palette(model, state.mode, look);
let image = null;
let lit = null;
let waiting = 0;
let visibleLabels = []; // the rectangles large enough for their names

const page = { ready: false, firstPaintMs: 0, lastDrawMs: 0, rectangles: model.count };
window.sublet = page;

const colourOf = (place) => {
  const i = model.piecesOf(place)[0];
  return i === undefined ? "transparent" : css(colours.fills[colours.tones[i]]);
};

// ---- lit rectangles, and the panel

function relight() {
  lit = null;
  const light = (place) => {
    for (const i of model.piecesOf(place)) lit[i] = 1;
  };
  if (state.reuse) {
    lit = new Uint8Array(model.count);
    state.reuse.chain.forEach(light);
    state.ring.forEach(light);
    for (const [i] of state.reuse.before) lit[i] = 1;
    for (const [i] of state.reuse.after) lit[i] = 1;
  } else if (state.ring.length) {
    lit = new Uint8Array(model.count);
    state.ring.forEach(light);
  } else if (state.point >= 0) {
    lit = new Uint8Array(model.count);
    for (const i of aliveAt(model, state.point)) lit[i] = 1;
  } else if (state.span) {
    const [begin, end] = state.span;
    lit = Uint8Array.from(model.left, (t, i) => Number(t < end && model.right[i] > begin));
  }
  if (state.matches) {
    lit ??= new Uint8Array(model.count);
    state.matches.forEach(light);
  }
  schedule();
}

function choose(place) {
  if (!model.piecesOf(place).length) fold(false);
  state.place = place;
  state.point = -1;
  state.span = null;
  state.ring = model.rings.get(place) ?? [];
  state.reuse = reuseAround(model, place);
  showReuse(panel, model, colourOf, place, state.reuse, step);
  relight();
}

function choosePoint(point) {
  state.place = -1;
  state.span = null;
  state.reuse = null;
  state.ring = [];
  state.point = point;
  const atPeak = point < 0; // the peak is in a body version hidden by folding
  showPoint(panel, atPeak ? whole : model, colourOf, atPeak ? whole.peak.point : point, step);
  if (atPeak || point === model.peak.point) showPointers(panel, model, choosePointer);
  relight();
}

function chooseSpan(begin, end) {
  state.place = state.point = -1;
  state.reuse = null;
  state.ring = [];
  state.span = [begin, end];
  showSpan(panel, model, colourOf, begin, end, step);
  relight();
}

function step(place) {
  choose(place);
  reveal(place);
}

function choosePointer(pointer) {
  state.place = state.point = -1;
  state.span = null;
  state.reuse = null;
  state.ring = pointer.targets.flatMap((name) => model.placesOf.get(name) ?? []);
  showPointer(panel, model, colourOf, pointer, state.ring, step);
  relight();
}

// Fold the body versions of each loop to the first of the period, or unfold the versions.
function fold(on) {
  if (on === (model !== whole)) return;
  model = on ? folded(whole) : whole;
  modes = colourModes(model);
  state.mode = modes.find((mode) => mode.name === state.mode.name);
  state.hover = -1;
  home.t1 = Math.max(model.duration, 1);
  leastTime = closest(home.t1, 2);
  page.rectangles = model.count;
  foldButton.setAttribute("aria-pressed", String(on));
  foldButton.textContent = on ? "Unfold loops" : "Fold loops";
  recolour();
  setView(home);
  if (state.place >= 0 && model.piecesOf(state.place).length) choose(state.place);
  else rest();
}

// No selection: the panel shows the peak and the advice.
function rest() {
  choosePoint(model.peak.point);
  showAdvice(panel, model);
  state.point = -1;
  relight();
}

function clear() {
  rest();
  search.value = "";
  find("");
}

// Bring a tensor into view, and zoom in if the tensor is too small to be seen.
function reveal(place) {
  const pieces = model.piecesOf(place);
  if (!pieces.length) return;
  const i = pieces[0];
  const { view } = state;
  const { map } = panels;
  const spanTime = Math.min(view.t1 - view.t0, ((model.right[i] - model.left[i]) * map.w) / 30);
  const spanBytes = Math.min(view.a1 - view.a0, ((model.top[i] - model.bottom[i]) * map.h) / 14);
  const inside = model.left[i] >= view.t0 && model.right[i] <= view.t1 && model.bottom[i] >= view.a0 && model.top[i] <= view.a1;
  if (inside && spanTime === view.t1 - view.t0 && spanBytes === view.a1 - view.a0) return;
  const t = (model.left[i] + model.right[i]) / 2;
  const a = (model.bottom[i] + model.top[i]) / 2;
  setView({ t0: t - spanTime / 2, t1: t + spanTime / 2, a0: a - spanBytes / 2, a1: a + spanBytes / 2 });
}

function find(text) {
  const wanted = text.toLowerCase();
  model.lowerCase ??= model.placements.name.map((name) => name.toLowerCase());
  state.matches = null;
  state.match = -1;
  if (wanted) {
    state.matches = [];
    model.lowerCase.forEach((name, place) => name.includes(wanted) && state.matches.push(place));
  }
  found.value = state.matches ? plural(state.matches.length, "match", "matches") : "";
  relight();
}

function stepMatch(step) {
  const count = state.matches?.length ?? 0;
  if (!count) return;
  state.match = state.match < 0 && step < 0 ? count - 1 : (state.match + step + count) % count;
  found.value = `${state.match + 1} of ${count}`;
  choose(state.matches[state.match]);
  reveal(state.matches[state.match]);
}

// The next or previous rectangle in the order of time.
function stepRectangle(step) {
  if (!model.count) return;
  const at = state.place < 0 ? -1 : model.piecesOf(state.place)[0] ?? -1;
  const next = at < 0 && step < 0 ? model.count - 1 : (at + step + model.count) % model.count;
  choose(model.placement[next]);
  reveal(model.placement[next]);
}

// ---- the view

// The maximum zoom: two points and 64 bytes, or the limit of doubles for large addresses.
const CLOSEST = 2 ** -40;
const closest = (span, least) => Math.min(span, Math.max(least, span * CLOSEST));
let leastTime = closest(home.t1, 2);
const leastBytes = closest(home.a1, 64);

function setView(wanted) {
  state.view = {
    ...confined(wanted.t0, wanted.t1, home.t0, home.t1, leastTime, ["t0", "t1"]),
    ...confined(wanted.a0, wanted.a1, home.a0, home.a1, leastBytes, ["a0", "a1"]),
  };
  schedule();
}

// A range of at least `least` inside [low, high]: shifted, not cut.
function confined(begin, end, low, high, least, [first, second]) {
  const span = Math.min(high - low, Math.max(least, end - begin));
  const centre = (begin + end) / 2;
  const start = Math.min(high - span, Math.max(low, centre - span / 2));
  return { [first]: start, [second]: start + span };
}

function zoom(factorTime, factorBytes, t, a) {
  const { t0, t1, a0, a1 } = state.view;
  const bytes = (a1 - a0) * factorBytes;
  const time = (t1 - t0) * factorTime;
  const low = a - ((a - a0) / (a1 - a0)) * bytes;
  const begin = t - ((t - t0) / (t1 - t0)) * time;
  setView({ t0: begin, t1: begin + time, a0: low, a1: low + bytes });
}

function pan(shareTime, shareBytes) {
  const { t0, t1, a0, a1 } = state.view;
  const time = (t1 - t0) * shareTime;
  const bytes = (a1 - a0) * shareBytes;
  setView({ t0: t0 + time, t1: t1 + time, a0: a0 + bytes, a1: a1 + bytes });
}
