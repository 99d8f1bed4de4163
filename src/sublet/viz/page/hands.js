// Pointer and keyboard.

function locate(event) {
  const box = stage.getBoundingClientRect();
  const x = event.clientX - box.left;
  const y = event.clientY - box.top;
  const { map, curve } = panels;
  const { t0, t1, a0, a1 } = state.view;
  const within = (area) => x >= area.x && x < area.x + area.w && y >= area.y && y < area.y + area.h;
  return {
    x, y, inMap: within(map), inCurve: within(curve),
    t: t0 + ((x - map.x) / map.w) * (t1 - t0),
    a: a0 + ((map.y + map.h - y) / map.h) * (a1 - a0),
  };
}

function pickAt(at) {
  const { t0, t1, a0, a1 } = state.view;
  return pick(model, at.t, at.a, ((t1 - t0) / panels.map.w) * 3, ((a1 - a0) / panels.map.h) * 3);
}

function hover(event) {
  const at = locate(event);
  state.pointer = at.inMap || at.inCurve ? at : null;
  state.hover = at.inMap ? pickAt(at) : -1;
  if (state.hover >= 0) {
    const place = model.placement[state.hover];
    showTip(tip, event.clientX, event.clientY, model.placements.name[place], factsOf(model, place));
  } else if (state.pointer) {
    const point = Math.floor(at.t);
    showTip(tip, event.clientX, event.clientY, pointName(model, point), [
      ...liveRows(model, at.t),
      ["Address", at.inMap && at.a >= 0 ? freeText(Math.floor(at.a)) : ""],
    ]);
  } else {
    const band = bandAt(model, panels.map, at.t, at.y);
    if (band) showTip(tip, event.clientX, event.clientY, band.label, []);
    else tip.hidden = true;
  }
  drawOverlay();
}

// Between two arenas there are no bytes.
function freeText(a) {
  return several(model) && a >= arenaAt(model, a).end ? "" : `${exact(ownAddress(model, a))}${inArena(model, a)}, free here`;
}

function leave() {
  state.hover = -1;
  state.pointer = null;
  tip.hidden = true;
  drawOverlay();
}

let drag = null;

stage.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  const { inCurve, t } = locate(event);
  drag = { x: event.clientX, y: event.clientY, view: { ...state.view }, inCurve, t, moved: false };
  stage.setPointerCapture(event.pointerId);
});

stage.addEventListener("pointermove", (event) => {
  if (!drag) return hover(event);
  const dx = event.clientX - drag.x;
  const dy = event.clientY - drag.y;
  if (!drag.moved && Math.hypot(dx, dy) < 4) return undefined;
  drag.moved = true;
  if (drag.inCurve) return spanTo(locate(event).t);
  stage.classList.add("dragging");
  leave();
  const { t0, t1, a0, a1 } = drag.view;
  const time = (-dx / panels.map.w) * (t1 - t0);
  const bytes = (dy / panels.map.h) * (a1 - a0);
  return setView({ t0: t0 + time, t1: t1 + time, a0: a0 + bytes, a1: a1 + bytes });
});

// A drag over the curve selects the points from the start of the drag to the pointer.
function spanTo(t) {
  const inside = (point) => Math.max(0, Math.min(model.duration - 1, Math.floor(point)));
  const [first, last] = [inside(drag.t), inside(t)].sort((a, b) => a - b);
  leave();
  chooseSpan(first, last + 1);
}

stage.addEventListener("pointerup", (event) => {
  const click = drag && !drag.moved;
  drag = null;
  stage.classList.remove("dragging");
  if (!click) return;
  const at = locate(event);
  const i = at.inMap ? pickAt(at) : -1;
  tip.hidden = true; // the panel tells it all; the pointer should not cover what it has lit
  if (i >= 0) choose(model.placement[i]);
  else if (at.inCurve) choosePoint(Math.floor(at.t));
  else clear();
});

stage.addEventListener("pointercancel", () => {
  drag = null;
  stage.classList.remove("dragging");
});
stage.addEventListener("pointerleave", leave);
stage.addEventListener("dblclick", () => setView(home));
stage.addEventListener("wheel", (event) => {
  event.preventDefault();
  const at = locate(event);
  const lines = event.deltaMode === 1 ? 16 : 1;
  const factor = Math.exp(Math.max(-240, Math.min(240, (event.deltaY || event.deltaX) * lines)) * 0.0022);
  zoom(event.altKey ? 1 : factor, event.shiftKey || at.inCurve ? 1 : factor, at.t, at.a);
  hover(event);
}, { passive: false });

// ---- the keyboard

const KEYS = {
  ArrowLeft: () => pan(-0.1, 0),
  ArrowRight: () => pan(0.1, 0),
  ArrowUp: () => pan(0, 0.1),
  ArrowDown: () => pan(0, -0.1),
  "+": () => zoomCentre(0.7),
  "=": () => zoomCentre(0.7),
  "-": () => zoomCentre(1 / 0.7),
  0: () => setView(home),
  f: () => foldButton.hidden || fold(model === whole),
  ",": () => stepRectangle(-1),
  ".": () => stepRectangle(1),
  "/": () => search.focus(),
};

function zoomCentre(factor) {
  const { t0, t1, a0, a1 } = state.view;
  zoom(factor, factor, (t0 + t1) / 2, (a0 + a1) / 2);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    clear();
    stage.focus();
    return;
  }
  const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});

search.addEventListener("input", () => find(search.value));
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") stepMatch(event.shiftKey ? -1 : 1);
});
document.getElementById("next").addEventListener("click", () => stepMatch(1));
document.getElementById("previous").addEventListener("click", () => stepMatch(-1));
document.getElementById("reset").addEventListener("click", () => setView(home));
