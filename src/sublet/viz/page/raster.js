// Rectangles into pixels. Filling rows of a typed array is several times faster than as many
// fillRect calls, and keeps every edge on a pixel.

const LABEL_WIDTH = 34;
const LABEL_HEIGHT = 13;

// Fills `pixels` (width x height, one Uint32 a pixel) with what `view` shows. `lit` marks rectangles
// to be shown in full colour, all others are dimmed; null lights all. Returns the rectangles that are
// large enough to carry a label.
function rasterise(pixels, width, height, view, model, colours, lit, scale) {
  const { left, right, bottom, top, count } = model;
  const { tones, plot, fill, edge, dimFill, dimEdge } = colours;
  const perTime = width / (view.t1 - view.t0);
  const perByte = height / (view.a1 - view.a0);
  const small = [];
  const labels = [];
  const border = Math.max(1, Math.round(scale));
  pixels.fill(plot);
  drawReserved(pixels, width, height, view, model.blockPieces, colours, perTime, perByte);
  for (let i = 0; i < count; i++) {
    if (left[i] >= view.t1 || right[i] <= view.t0 || bottom[i] >= view.a1 || top[i] <= view.a0) continue;
    const x0 = Math.max(0, Math.round((left[i] - view.t0) * perTime));
    const x1 = Math.min(width, Math.round((right[i] - view.t0) * perTime));
    const y0 = Math.max(0, height - Math.round((top[i] - view.a0) * perByte));
    const y1 = Math.min(height, height - Math.round((bottom[i] - view.a0) * perByte));
    if (x1 <= x0 || y1 <= y0) {
      small.push(i);
      continue;
    }
    const bright = lit === null || lit[i] !== 0;
    const tone = tones[i];
    const inside = bright ? fill[tone] : dimFill[tone];
    if (x1 - x0 < 4 * border || y1 - y0 < 4 * border) {
      fillRows(pixels, width, x0, x1, y0, y1, inside);
      continue;
    }
    fillRows(pixels, width, x0, x1, y0, y1, bright ? edge[tone] : dimEdge[tone]);
    fillRows(pixels, width, x0 + border, x1 - border, y0 + border, y1 - border, inside);
    if (x1 - x0 >= LABEL_WIDTH * scale && y1 - y0 >= LABEL_HEIGHT * scale) labels.push(i);
  }
  drawSmall(pixels, width, height, view, model, colours, lit, small, perTime, perByte);
  return labels;
}

function fillRows(pixels, width, x0, x1, y0, y1, colour) {
  for (let row = y0 * width; row < y1 * width; row += width) pixels.fill(colour, row + x0, row + x1);
}

// Level of detail: a rectangle thinner than a pixel takes one pixel, but only on free ground: a thousand thin
// rectangles merge into one texture and hide no large rectangle. Lit rectangles come on top while others are dimmed:
// a match must never vanish.
function drawSmall(pixels, width, height, view, model, colours, lit, small, perTime, perByte) {
  const { left, right, bottom, top } = model;
  const { tones, plot, reserved, fill, dimFill } = colours;
  for (const i of small) {
    const x0 = Math.min(width - 1, Math.max(0, Math.floor((left[i] - view.t0) * perTime)));
    const x1 = Math.max(x0 + 1, Math.min(width, Math.round((right[i] - view.t0) * perTime)));
    const y1 = Math.max(1, Math.min(height, height - Math.floor((bottom[i] - view.a0) * perByte)));
    const y0 = Math.min(y1 - 1, Math.max(0, height - Math.round((top[i] - view.a0) * perByte)));
    const found = lit !== null && lit[i] !== 0;
    const colour = lit === null || found ? fill[tones[i]] : dimFill[tones[i]];
    for (let y = y0; y < y1; y++) {
      for (let at = y * width + x0; at < y * width + x1; at++) {
        if (found || pixels[at] === plot || pixels[at] === reserved) pixels[at] = colour;
      }
    }
  }
}

// Bytes of a buffer not needed by the current values, as diagonal hatching.
function drawReserved(pixels, width, height, view, pieces, colours, perTime, perByte) {
  for (let i = 0; i < pieces.block.length; i++) {
    const x0 = Math.max(0, Math.round((pieces.left[i] - view.t0) * perTime));
    const x1 = Math.min(width, Math.round((pieces.right[i] - view.t0) * perTime));
    const y0 = Math.max(0, height - Math.round((pieces.top[i] - view.a0) * perByte));
    const y1 = Math.min(height, height - Math.round((pieces.bottom[i] - view.a0) * perByte));
    for (let y = y0; y < y1; y++) {
      for (let x = x0; x < x1; x++) {
        if (((x + y) & 7) < 2) pixels[y * width + x] = colours.reserved;
      }
    }
  }
}
