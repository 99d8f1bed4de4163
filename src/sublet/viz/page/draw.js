// One frame: the picture on the lower canvas; parts that follow the pointer on the upper canvas.

function fit() {
  const scale = window.devicePixelRatio || 1;
  const { width, height } = stage.getBoundingClientRect();
  for (const canvas of [base, overlay]) {
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
  }
  panels = layout(width, height, scale, axisHeight(model, state.view, panels.map.w), bandRows(whole) + scopeRows(whole));
  const { w, h } = panels.map;
  image = new ImageData(Math.max(1, Math.round(w * scale)), Math.max(1, Math.round(h * scale)));
  image.pixels = new Uint32Array(image.data.buffer);
}

function draw() {
  waiting = 0;
  const start = performance.now();
  if (axisHeight(model, state.view, panels.map.w) !== panels.map.axis) fit();
  const scale = window.devicePixelRatio || 1;
  const context = base.getContext("2d");
  const { map } = panels;
  context.fillStyle = look.paper;
  context.fillRect(0, 0, base.width, base.height);
  visibleLabels = rasterise(image.pixels, image.width, image.height, state.view, model, colours, lit, scale);
  context.putImageData(image, Math.round(map.x * scale), Math.round(map.y * scale));
  drawAround(context, visibleLabels);
  drawOverlay();
  page.lastDrawMs = performance.now() - start;
}

// All but the rectangles, on a canvas or in a recorder of SVG.
function drawAround(context, labels) {
  const { map, curve } = panels;
  context.font = FONT;
  context.lineWidth = 1;
  clipped(context, map, () => drawNames(context, map, state.view, model, colours, lit, labels));
  addressAxis(context, map, state.view, model, { ...look, grid: "transparent" });
  byteAxis(context, curve, { low: 0, high: curveTop }, 0, curveTop, Math.max(1, curve.h / 40), look);
  timeAxis(context, map, state.view, model, look);
  drawScopes(context, map, state.view, model, look);
  drawBands(context, map, state.view, model, look);
  drawCurve(context, curve, state.view, model.curve, curveTop, look.curve, look.curveFill);
  for (const other of model.others) drawCurve(context, curve, state.view, other, curveTop, look.other, null);
  const writeArenas = drawArenas(context, map, state.view, model, look);
  if (!several(model)) drawLevels(context, curve, curveTop, model, look);
  drawFrame(context, map, "address", look);
  drawFrame(context, curve, "live bytes", look);
  drawPeak(context, panels, state.view, model, curveTop, look);
  writeArenas();
}

function schedule() {
  if (!waiting) waiting = requestAnimationFrame(draw);
}

function outline(context, i, colour, width, dash) {
  const { map } = panels;
  const x0 = atTime(map, state.view, model.left[i]);
  const x1 = Math.max(x0 + 2, atTime(map, state.view, model.right[i]));
  const y0 = atByte(map, state.view, model.top[i]);
  const y1 = Math.max(y0 + 2, atByte(map, state.view, model.bottom[i]));
  context.setLineDash([]);
  context.lineWidth = width + 2;
  context.strokeStyle = look.paper;
  context.strokeRect(x0, y0, x1 - x0, y1 - y0);
  context.lineWidth = width;
  context.strokeStyle = colour;
  context.setLineDash(dash);
  context.strokeRect(x0, y0, x1 - x0, y1 - y0);
  context.setLineDash([]);
}

// A bracket of bytes handed over: from the end of one rectangle to the beginning of the next.
function drawHanding(context, i, fromTime, toTime, box) {
  const { map } = panels;
  const y = atByte(map, state.view, (Math.max(model.bottom[i], box.bottom) + Math.min(model.top[i], box.top)) / 2);
  const x0 = atTime(map, state.view, fromTime);
  const x1 = atTime(map, state.view, toTime);
  context.strokeStyle = context.fillStyle = look.ink;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x0, y);
  context.lineTo(x1, y);
  context.stroke();
  context.beginPath();
  context.moveTo(x1 + 5, y);
  context.lineTo(x1 - 4, y - 5);
  context.lineTo(x1 - 4, y + 5);
  context.fill();
}

function drawOverlay() {
  const context = overlay.getContext("2d");
  const { map, curve } = panels;
  context.clearRect(0, 0, overlay.width, overlay.height);
  clipped(context, map, () => {
    if (state.reuse) {
      const { before, after, chain, box } = state.reuse;
      for (const [i] of before.slice(0, 300)) outline(context, i, look.ink, 1, [3, 3]);
      for (const [i] of after.slice(0, 300)) outline(context, i, look.ink, 1, [3, 3]);
      for (const place of chain) for (const i of model.piecesOf(place)) outline(context, i, look.ink, 1, []);
      for (const i of model.piecesOf(state.place)) outline(context, i, look.ink, 2.5, []);
      for (const [i] of before.slice(0, 40)) drawHanding(context, i, model.right[i], box.left, box);
      for (const [i] of after.slice(0, 40)) drawHanding(context, i, box.right, model.left[i], box);
    }
    const outlined = (ring, dash) => ring.slice(0, 64).forEach((place) => model.piecesOf(place).forEach((i) => outline(context, i, look.curve, 2, dash)));
    outlined(state.ring.filter((place) => place !== state.place), []);
    if (state.hover >= 0) {
      outlined(model.rings.get(model.placement[state.hover]) ?? [], [4, 2]);
      outline(context, state.hover, look.ink, 1.5, []);
    }
  });
  if (state.point >= 0) drawPointBand(context, state.point, state.point + 1);
  if (state.span) drawPointBand(context, ...state.span);
  if (state.pointer) {
    context.fillStyle = look.quiet;
    context.globalAlpha = 0.5;
    for (const box of [map, curve]) context.fillRect(Math.round(state.pointer.x), box.y, 1, box.h);
    context.globalAlpha = 1;
  }
}

function drawPointBand(context, begin, end) {
  const x0 = atTime(panels.map, state.view, begin);
  const x1 = Math.max(x0 + 1.5, atTime(panels.map, state.view, end));
  for (const box of [panels.map, panels.curve]) {
    clipped(context, box, () => {
      context.strokeStyle = look.ink;
      context.lineWidth = 1;
      context.strokeRect(x0, box.y - 2, x1 - x0, box.h + 4);
    });
  }
}
