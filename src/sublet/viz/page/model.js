// The plan as the page holds it: columns of numbers as typed arrays, names as strings.

const TYPES = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array, u64: BigUint64Array };
const HOWS = ["own bytes", "view", "part", "in place", "carried", "slice", "row", "in the buffer"];

// A page of a trade-off curve or of ranges holds one plan a point; the fragment of the address (#point-2) selects the
// shown plan. A slider adds its number (#point-2-0), to keep the focus.
const [, spotText, sliderText] = /^#point-(\d+)(?:-(\d+))?$/.exec(location.hash) ?? [];
const shownSpot = Number(spotText ?? 0);

// The data block: base64 of deflate of (length of the JSON, the JSON, the columns).
async function unpack() {
  const block = document.getElementById(`model-${shownSpot}`) ?? document.getElementById("model");
  const text = atob(block.textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const content = await new Response(stream).arrayBuffer();
  const start = 8 + Number(new DataView(content).getBigUint64(0, true));
  const json = new TextDecoder().decode(new Uint8Array(content, 8, start - 8));
  // Typed arrays have the byte order of the machine: little-endian wherever browsers run.
  const decode = ([type, position, count]) => new TYPES[type](content, start + position, count);
  return [JSON.parse(json), decode];
}

// Drawing may round numbers above 2^53; text must be exact, and reads the array itself.
const drawable = (numbers) => (numbers instanceof BigUint64Array ? Float64Array.from(numbers, Number) : numbers);

async function loadModel() {
  const [source, decode] = await unpack();
  const decoded = (columns) => Object.fromEntries(Object.entries(columns).map(([key, at]) => [key, decode(at)]));
  const { words, points } = source;
  const placements = decoded(source.placements);
  placements.word = words;
  placements.name = words.slice(points, points + placements.block.length);
  const blocks = decoded(source.blocks);
  const curve = decoded(source.curve);
  const [pointOps, pointScopes] = [source.pointOps, source.pointScopes].map((column) => Array.from(decode(column), (at) => words[at]));
  const { places, rings } = ringsOf(placements.name, Array.from(placements.rounds, (at) => words[at]), source.others[0]?.first ?? Infinity);
  return {
    ...source, placements, blocks, rings,
    arenas: arenasOf(source.arenas),
    others: source.others.map(({ label, arena, first, point, bytes }) => ({ label, arena, first, point: drawable(decode(point)), bytes: drawable(decode(bytes)) })),
    placesOf: places,
    bands: source.bands.map(([label, begin, end, exit, depth, kept, repeats]) => ({ label, begin, end, exit, depth, kept, repeats })),
    pointers: source.pointers.map(([name, spec, targets]) => ({ name, spec, targets })),
    duration: Number(source.duration),
    height: Number(source.height),
    points: words.slice(0, points),
    pointOps, pointScopes,
    scopeRuns: scopeRuns({ pointScopes }),
    peak: { point: Number(source.peak.point), bytes: Number(source.peak.bytes), exact: source.peak.bytes },
    curve: { point: drawable(curve.point), bytes: drawable(curve.bytes) },
    ...edges(placements, decoded(source.rectangles)),
    blockPieces: blockEdges(blocks),
  };
}

// One rectangle: time from left to right, addresses from bottom to top.
function edges(placements, rectangles) {
  const { placement } = rectangles;
  const begin = drawable(rectangles.begin);
  const length = drawable(rectangles.length);
  const offset = drawable(placements.offset);
  const nbytes = drawable(placements.nbytes);
  const count = placement.length;
  const [left, right, bottom, top] = Array.from({ length: 4 }, () => new Float64Array(count));
  for (let i = 0; i < count; i++) {
    const place = placement[i];
    left[i] = begin[i];
    right[i] = begin[i] + length[i];
    bottom[i] = offset[place];
    top[i] = offset[place] + nbytes[place];
  }
  return {
    count, placement, left, right, bottom, top,
    piecesOf: grouped(placement, placements.name.length),
    membersOf: grouped(placements.block, 1 + placements.block.reduce((a, b) => Math.max(a, b), 0)),
  };
}

function blockEdges(blocks) {
  const offset = drawable(blocks.offset);
  const nbytes = drawable(blocks.nbytes);
  const begin = drawable(blocks.pieceBegin);
  const length = drawable(blocks.pieceLength);
  const block = blocks.pieceBlock;
  const edge = (value) => Float64Array.from(block, value);
  return {
    block,
    left: edge((b, i) => begin[i]),
    right: edge((b, i) => begin[i] + length[i]),
    bottom: edge((b) => offset[b]),
    top: edge((b) => offset[b] + nbytes[b]),
  };
}

// Returns a function from a key to its positions, in order; all positions share one array.
function grouped(keys, count) {
  const start = new Uint32Array(count + 1);
  for (let i = 0; i < keys.length; i++) start[keys[i] + 1]++;
  for (let k = 0; k < count; k++) start[k + 1] += start[k];
  const fill = start.slice();
  const order = new Uint32Array(keys.length);
  for (let i = 0; i < keys.length; i++) order[fill[keys[i]]++] = i;
  return (key) => order.subarray(start[key], start[key + 1]);
}

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

// Three significant digits and a binary unit, as sublet.bytesize.human writes them.
function human(bytes) {
  const value = Number(bytes);
  if (value < 1024) return `${value} B`;
  for (let power = 1; ; power++) {
    const scaled = value / 1024 ** power;
    const factor = scaled < 10 ? 100 : scaled < 100 ? 10 : 1;
    const rounded = Math.floor(scaled * factor + 0.5) / factor;
    if (rounded < 1024 || power === UNITS.length) return `${rounded} ${UNITS[power - 1]}`;
  }
}

const exact = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
const sized = (bytes) => (Number(bytes) < 1024 ? `${bytes} B` : `${human(bytes)} (${exact(bytes)} B)`);
const sum = (a, b) => (typeof a === "bigint" || typeof b === "bigint" ? BigInt(a) + BigInt(b) : a + b);
const plural = (count, one, many) => `${exact(count)} ${count === 1 ? one : many}`;

function pointName(model, point) {
  const name = model.points[point];
  return name ? name : `t = ${BigInt(model.origin) + BigInt(Math.floor(point))}`;
}
