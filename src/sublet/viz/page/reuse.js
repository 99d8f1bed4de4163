// Values in the same bytes: at the same time (the sharing chain of one buffer), before, after, and between.

// The values of a buffer in the order of their definitions.
function sharingChain(model, place) {
  const block = model.placements.block[place];
  const begin = (other) => model.left[model.piecesOf(other)[0]] ?? Infinity;
  return Array.from(model.membersOf(block)).sort((a, b) => begin(a) - begin(b) || a - b);
}

function extent(model, places) {
  const box = { left: Infinity, right: -Infinity, bottom: Infinity, top: -Infinity };
  for (const place of places) {
    for (const i of model.piecesOf(place)) {
      box.left = Math.min(box.left, model.left[i]);
      box.right = Math.max(box.right, model.right[i]);
      box.bottom = Math.min(box.bottom, model.bottom[i]);
      box.top = Math.max(box.top, model.top[i]);
    }
  }
  return box;
}

// The chain of reuse around one value: rectangles of other buffers at the addresses of its buffer.
function reuseAround(model, place) {
  const chain = sharingChain(model, place);
  const box = extent(model, chain);
  const block = model.placements.block[place];
  const before = [];
  const between = [];
  const after = [];
  for (let i = 0; i < model.count; i++) {
    if (model.bottom[i] >= box.top || model.top[i] <= box.bottom) continue;
    if (model.placements.block[model.placement[i]] === block) continue;
    if (model.right[i] <= box.left) before.push(i);
    else if (model.left[i] >= box.right) after.push(i);
    else between.push(i);
  }
  before.sort((i, j) => model.right[j] - model.right[i] || i - j);
  after.sort((i, j) => model.left[i] - model.left[j] || i - j);
  return { chain, box, before: nearest(model, box, before), between, after: nearest(model, box, after) };
}

// For every byte of the box the nearest rectangle in time: the candidates come nearest first, each
// takes the bytes that are still free. Returns [rectangle, bytes handed over].
function nearest(model, box, candidates) {
  let free = [[box.bottom, box.top]];
  const found = [];
  for (const i of candidates) {
    if (free.length === 0) break;
    const rest = [];
    let taken = 0;
    for (const [low, high] of free) {
      const from = Math.max(low, model.bottom[i]);
      const to = Math.min(high, model.top[i]);
      if (from >= to) {
        rest.push([low, high]);
        continue;
      }
      taken += to - from;
      if (low < from) rest.push([low, from]);
      if (to < high) rest.push([to, high]);
    }
    free = rest;
    if (taken > 0) found.push([i, taken]);
  }
  return found;
}

// The rectangle at a point and an address: the one drawn last, or the nearest within `reach` of it.
function pick(model, t, a, reachTime, reachBytes) {
  const { left, right, bottom, top } = model;
  let near = -1;
  let best = 1;
  for (let i = model.count - 1; i >= 0; i--) {
    const outTime = Math.max(left[i] - t, t - right[i], 0) / reachTime;
    if (outTime > 1) continue;
    const outBytes = Math.max(bottom[i] - a, a - top[i], 0) / reachBytes;
    if (outTime === 0 && outBytes === 0) return i;
    const distance = Math.hypot(outTime, outBytes);
    if (distance < best) {
      best = distance;
      near = i;
    }
  }
  return near;
}

const aliveAt = (model, point) => {
  const alive = [];
  for (let i = 0; i < model.count; i++) if (model.left[i] <= point && point < model.right[i]) alive.push(i);
  const size = (i) => model.top[i] - model.bottom[i];
  return alive.sort((i, j) => size(j) - size(i) || i - j);
};
