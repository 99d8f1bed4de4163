// All parts around and over the rectangles: axes, names, the curve of live bytes, marked lines.

const FONT = '11px system-ui, "Segoe UI", "Liberation Sans", "DejaVu Sans", sans-serif';

// The positions of the two panels in a stage of this size, in CSS pixels that are whole device pixels.
function layout(width, height, scale, axis, rows) {
  const snap = (value) => Math.round(value * scale) / scale;
  const left = snap(78);
  const inner = snap(Math.max(40, width - 78 - 18));
  const curveHeight = snap(Math.max(70, Math.min(150, height * 0.2)));
  const mapTop = snap(26);
  const between = 13 + axis + rows * BAND_HEIGHT;
  const mapHeight = snap(Math.max(60, height - 26 - curveHeight - between - 24));
  return {
    map: { x: left, y: mapTop, w: inner, h: mapHeight, axis },
    curve: { x: left, y: snap(mapTop + mapHeight + between), w: inner, h: curveHeight },
  };
}

const atTime = (panel, view, t) => panel.x + ((t - view.t0) / (view.t1 - view.t0)) * panel.w;
const atByte = (panel, view, a) => panel.y + panel.h - ((a - view.a0) / (view.a1 - view.a0)) * panel.h;

function clipped(context, panel, draw) {
  context.save();
  context.beginPath();
  context.rect(panel.x, panel.y, panel.w, panel.h);
  context.clip();
  draw();
  context.restore();
}

// A step of 1, 2 or 5 times a power of ten.
function roundStep(span, count) {
  const raw = Math.max(span / count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
}

// Addresses are round in powers of two: a step of 2^k bytes, and no fraction in any label.
const byteStep = (span, count) => 2 ** Math.max(0, Math.ceil(Math.log2(span / count)));

function byteLabel(bytes, step) {
  const power = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), UNITS.length);
  if (power === 0) return `${bytes} B`;
  const halvings = Math.max(0, power * 10 - Math.log2(step)); // each takes one digit after the point
  return `${Number((bytes / 1024 ** power).toFixed(Math.min(halvings, 5)))} ${UNITS[power - 1]}`;
}

// Ticks of the bytes counted from `begin`, up to `end`, on a panel that shows [low, high].
function byteAxis(context, panel, { low, high }, begin, end, count, look) {
  const step = byteStep(high - low, count);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let k = Math.max(0, Math.ceil((low - begin) / step)); begin + k * step <= Math.min(high, end); k++) {
    const a = k * step;
    const y = Math.round(atByte(panel, { a0: low, a1: high }, begin + a)) + 0.5;
    context.strokeStyle = look.grid;
    context.beginPath();
    context.moveTo(panel.x, y);
    context.lineTo(panel.x + panel.w, y);
    context.stroke();
    context.fillStyle = look.quiet;
    context.fillText(byteLabel(a, step), panel.x - 8, y);
  }
}

const NAMED = 46; // pixels a point needs to have its name beneath it
const UPRIGHT = 12; // or its op, from bottom to top

// The height of the time axis: for names of nodes if there is room, else for numbers.
function axisHeight(model, view, width) {
  const perPoint = width / (view.t1 - view.t0);
  return perPoint >= UPRIGHT && model.pointOps.some(Boolean) ? (perPoint >= NAMED ? 36 : 58) : 21;
}

// The axis between the panels: the nodes at the points if there is room, else numbers of points.
function timeAxis(context, panel, view, model, look) {
  const perPoint = panel.w / (view.t1 - view.t0);
  const step = roundStep(view.t1 - view.t0, Math.max(2, panel.w / 80));
  const named = perPoint >= NAMED && model.points.length > 0;
  context.textAlign = "center";
  context.textBaseline = "top";
  context.fillStyle = look.quiet;
  context.strokeStyle = look.frame;
  if (!named && perPoint >= UPRIGHT && model.pointOps.some(Boolean)) return uprightOps(context, panel, view, model);
  context.textAlign = "right";
  context.fillText("point", panel.x - 8, panel.y + panel.h + 7);
  context.textAlign = "center";
  for (let k = Math.ceil((view.t0 - (named ? 0.5 : 0)) / step); k * step <= view.t1; k++) {
    const t = k * step;
    const x = atTime(panel, view, named ? t + 0.5 : t);
    if (x < panel.x || x > panel.x + panel.w) continue;
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, panel.y + panel.h);
    context.lineTo(Math.round(x) + 0.5, panel.y + panel.h + 4);
    context.stroke();
    const name = named ? shortened(context, model.points[t] ?? "", perPoint - 6) : tickText(model, t);
    const op = named ? model.pointOps[t] : "";
    if (op) context.fillText(begun(context, op, perPoint - 6), x, panel.y + panel.h + 7);
    context.fillText(name, x, panel.y + panel.h + (op ? 22 : 7));
  }
  return undefined;
}

function uprightOps(context, panel, view, model) {
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let t = Math.max(0, Math.floor(view.t0)); t < Math.min(model.points.length, view.t1); t++) {
    const x = atTime(panel, view, t + 0.5);
    if (x < panel.x || x > panel.x + panel.w) continue;
    context.save();
    context.translate(x, panel.y + panel.h + 5);
    context.rotate(-Math.PI / 2);
    context.fillText(begun(context, model.pointOps[t] || model.points[t], panel.axis - 8), 0, 0);
    context.restore();
  }
}

// Shortens an op at the end: the beginning is the most telling part.
function begun(context, text, room) {
  for (let length = Math.min(text.length, 60); length > 1; length--) {
    const shown = length < text.length ? `${text.slice(0, length)}…` : text;
    if (context.measureText(shown).width <= room) return shown;
  }
  return "";
}

const tickText = (model, t) => String(BigInt(model.origin) + BigInt(model.original?.[t] ?? t));

// Shortens a name in front: the end is the most telling part, as in /layer3/block2/conv1/Relu_output_0.
function shortened(context, name, room) {
  let text = name.length > 120 ? `…${name.slice(-119)}` : name;
  if (context.measureText(text).width <= room) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (context.measureText(`…${text.slice(middle)}`).width <= room) high = middle;
    else low = middle + 1;
  }
  return text.length - low < 5 ? "" : `…${text.slice(low)}`;
}

function drawNames(context, panel, view, model, colours, lit, labels) {
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (const i of labels.length > 600 ? labels.slice(0, 600) : labels) {
    const x0 = Math.max(panel.x, atTime(panel, view, model.left[i]));
    const x1 = Math.min(panel.x + panel.w, atTime(panel, view, uncoveredEnd(model, i)));
    const y0 = Math.max(panel.y, atByte(panel, view, model.top[i]));
    const y1 = Math.min(panel.y + panel.h, atByte(panel, view, model.bottom[i]));
    const place = model.placement[i];
    const text = x1 - x0 < LABEL_WIDTH ? "" : shortened(context, labelOf(model, place), x1 - x0 - 10);
    if (!text || y1 - y0 < LABEL_HEIGHT) continue;
    const bright = lit === null || lit[i];
    const middle = (y0 + y1) / 2;
    const two = y1 - y0 >= 32 && x1 - x0 >= 60;
    context.fillStyle = bright ? colours.label[colours.tones[i]] : colours.dimLabel;
    context.fillText(text, x0 + 5, two ? middle - 7 : middle + 0.5);
    if (!two) continue;
    context.globalAlpha = 0.68;
    context.fillText(human(model.placements.nbytes[place]), x0 + 5, middle + 7);
    context.globalAlpha = 1;
  }
}

// ONNX exporters append this suffix to nearly every name; a narrow label would show nothing else.
const labelOf = (model, place) => model.placements.name[place].replace(/_output_0$/, "");

// The time at which a later value of the same buffer first covers this rectangle.
function uncoveredEnd(model, i) {
  let end = model.right[i];
  for (const place of model.membersOf(model.placements.block[model.placement[i]]).slice(0, 64)) {
    for (const j of model.piecesOf(place)) {
      if (j > i && model.left[j] < end && model.bottom[j] < model.top[i] && model.top[j] > model.bottom[i]) {
        end = model.left[j];
      }
    }
  }
  return end;
}

// The curve, one step a pixel column at most: the largest number of live bytes in it.
function drawCurve(context, panel, view, { point, bytes }, high, colour, fill) {
  const toY = (value) => atByte(panel, { a0: 0, a1: high }, value);
  const columns = curveColumns(point, bytes, view, Math.max(1, Math.round(panel.w)));
  clipped(context, panel, () => {
    context.beginPath();
    context.moveTo(panel.x, toY(0));
    columns.forEach((value, x) => {
      context.lineTo(panel.x + x, toY(value));
      context.lineTo(panel.x + x + 1, toY(value));
    });
    context.lineTo(panel.x + panel.w, toY(0));
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    context.strokeStyle = colour;
    context.lineWidth = (view.t1 - view.t0) / panel.w > 1 ? 1 : 1.5;
    context.stroke();
    context.lineWidth = 1;
  });
}

function curveColumns(point, bytes, view, width) {
  const columns = new Float64Array(width);
  const perTime = width / (view.t1 - view.t0);
  let i = Math.max(0, firstAfter(point, view.t0) - 1);
  for (; i < point.length && point[i] < view.t1; i++) {
    const end = i + 1 < point.length ? point[i + 1] : Infinity;
    const x0 = Math.max(0, Math.round((point[i] - view.t0) * perTime));
    const x1 = Math.min(width, Math.max(x0 + 1, Math.round((end - view.t0) * perTime)));
    for (let x = x0; x < x1; x++) columns[x] = Math.max(columns[x], bytes[i]);
  }
  return columns;
}

// The position of the first number greater than `limit` in a sorted array.
function firstAfter(sorted, limit) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

const levelAt = (curve, t) => curve.bytes[firstAfter(curve.point, t) - 1] ?? 0;
const liveBytes = (model, t) => levelAt(model.curve, t);

function levelLine(context, panel, y, colour, dash) {
  if (y < panel.y - 1 || y > panel.y + panel.h + 1) return false;
  context.strokeStyle = colour;
  context.setLineDash(dash);
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(panel.x, Math.round(y) + 0.5);
  context.lineTo(panel.x + panel.w, Math.round(y) + 0.5);
  context.stroke();
  context.setLineDash([]);
  context.lineWidth = 1;
  return true;
}

// Text on a plate of the background's colour, so that it can be read over anything.
function plate(context, text, x, y, colour, look, align) {
  const width = context.measureText(text).width;
  const left = align === "right" ? x - width : align === "center" ? x - width / 2 : x;
  context.globalAlpha = 0.86;
  context.fillStyle = look.paper;
  context.fillRect(left - 4, y - 8, width + 8, 16);
  context.globalAlpha = 1;
  context.fillStyle = colour;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(text, left, y + 0.5);
}

// Over the curve: the arena's end (solid) and the lower bound (dashed).
function drawLevels(context, panel, high, model, look) {
  const toY = (value) => atByte(panel, { a0: 0, a1: high }, Number(value));
  levelLine(context, panel, toY(model.figures.arena), look.arena, []);
  if (model.figures.lowerBound !== null) levelLine(context, panel, toY(model.figures.lowerBound), look.bound, [6, 4]);
}

// The point with the most live bytes: a band through both panels with one label.
function drawPeak(context, panels, view, model, high, look) {
  const { map, curve } = panels;
  if (model.peak.point < 0) return;
  const x0 = atTime(map, view, model.peak.point);
  const x1 = Math.max(x0 + 1.5, atTime(map, view, model.peak.point + 1));
  if (x1 < map.x || x0 > map.x + map.w) return;
  for (const panel of [map, curve]) {
    clipped(context, panel, () => {
      context.fillStyle = look.peak;
      context.globalAlpha = x1 - x0 > 4 ? 0.05 : 0.55;
      context.fillRect(x0, panel.y, x1 - x0, panel.h);
      context.globalAlpha = 0.9;
      if (x1 - x0 > 4) [x0, x1 - 1].forEach((x) => context.fillRect(x, panel.y, 1, panel.h));
      context.globalAlpha = 1;
    });
  }
  const middle = Math.max(map.x, Math.min(map.x + map.w, (x0 + x1) / 2));
  const y = atByte(curve, { a0: 0, a1: high }, liveBytes(model, model.peak.point));
  context.fillStyle = look.peak;
  context.beginPath();
  context.arc(middle, y, 4, 0, 7);
  context.fill();
  context.strokeStyle = look.paper;
  context.stroke();
  const of = model.others.length ? ` of ${shortened(context, model.label, map.w * 0.25)}` : "";
  const room = Math.min(220, map.w - 130 - context.measureText(of).width);
  const name = model.points.length ? ` at ${shortened(context, pointName(model, model.peak.point), room)}` : "";
  const text = `▼ peak${of}  ${human(model.peak.exact)}${name}`;
  const half = context.measureText(text).width / 2;
  plate(context, text, Math.max(map.x + half, Math.min(map.x + map.w - half, middle)), map.y - 12, look.peak, look, "center");
}

function drawFrame(context, panel, title, look) {
  context.strokeStyle = look.frame;
  context.strokeRect(panel.x - 0.5, panel.y - 0.5, panel.w + 1, panel.h + 1);
  context.save();
  context.translate(13, panel.y + panel.h / 2);
  context.rotate(-Math.PI / 2);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = look.quiet;
  context.fillText(title, 0, 0);
  context.restore();
}
