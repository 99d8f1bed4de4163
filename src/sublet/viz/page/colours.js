// Colours distinguishable with any common colour blindness.
// Fills: Paul Tol's "light" qualitative scheme; sequences: his "iridescent"-like blues, light to dark.

const QUALITATIVE = ["#77aadd", "#ee8866", "#44bb99", "#eedd88", "#99ddff", "#ffaabb", "#bbcc33", "#c3a6d8"];
const SHARING = ["#77aadd", "#eedd88", "#44bb99", "#ee8866", "#ffaabb", "#99ddff", "#bbcc33", "#dddddd"];
const SEQUENCE = ["#f3e79b", "#c9dd9b", "#97d0a8", "#6bbfb4", "#52a8bb", "#4a8cb8", "#4c6dab", "#4a4d92"];

const THEMES = {
  light: {
    paper: "#ffffff", plot: "#fafbfc", ink: "#1b1f27", quiet: "#5b6472", grid: "#e6e9ee", frame: "#b9c0cb",
    arena: "#5b6472", bound: "#0b7a4b", peak: "#c2185b", curve: "#0b62c4", other: "#b35900", curveFill: "rgba(11,98,196,0.14)", shade: 0,
  },
  dark: {
    paper: "#14171c", plot: "#191d23", ink: "#e8ebf0", quiet: "#a0a9b8", grid: "#272c35", frame: "#49515e",
    arena: "#a0a9b8", bound: "#58d39a", peak: "#ff6f9f", curve: "#7db8ff", other: "#f0b45a", curveFill: "rgba(125,184,255,0.18)", shade: 0.14,
  },
};

const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const theme = () => (darkScheme.matches ? THEMES.dark : THEMES.light);

const parse = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const mix = (a, b, share) => a.map((value, i) => Math.round(value + (b[i] - value) * share));
const css = ([r, g, b]) => `rgb(${r},${g},${b})`;
const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
const luminance = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b;

// The steps of a logarithmic scale for a whole number: 0, 1, 2, ... by powers of `base`.
const logStep = (value, smallest, base, steps) =>
  Math.max(0, Math.min(steps - 1, Math.floor(Math.log(Math.max(value, 1) / smallest) / Math.log(base) + 1e-9)));

function sequenceMode(name, values, label) {
  let smallest = Infinity;
  let largest = 1;
  for (const value of values) {
    smallest = Math.min(smallest, Math.max(value, 1));
    largest = Math.max(largest, value);
  }
  if (smallest === Infinity) smallest = 1;
  const steps = SEQUENCE.length;
  const base = Math.max(2, (largest / smallest) ** (1 / steps) * 1.0001);
  const used = logStep(largest, smallest, base, steps) + 1;
  return {
    name,
    colours: SEQUENCE.map(parse),
    of: (i) => logStep(values[i], smallest, base, steps),
    legend: Array.from({ length: used }, (_, k) => [k, `from ${label(Math.ceil(smallest * base ** k))}`]),
  };
}

// Positions in HOWS: values that are a part of another value's bytes, and values that replace another value.
const PALER = [1, 2, 5, 6];
const DEEPER = [3, 4];

// Ways to colour: `of(i)` is the colour of rectangle i, `legend` names colours.
function colourModes(model) {
  const { placements, placement, left, right, bottom, top } = model;
  const tones = QUALITATIVE.flatMap((hex) => {
    const own = parse(hex);
    const pale = mix(own, [255, 255, 255], 0.45);
    const deep = mix(own, [30, 40, 60], 0.16);
    return HOWS.map((how, k) => (PALER.includes(k) ? pale : DEEPER.includes(k) ? deep : own));
  });
  const hows = HOWS.map((how, k) => k).filter((k) => placements.how.includes(k));
  const buffers = [[0, "one colour a buffer (they repeat)"]];
  if (hows.some((k) => PALER.includes(k))) buffers.push([1, "paler: view or part, slice or row"]);
  if (hows.some((k) => DEEPER.includes(k))) buffers.push([3, "deeper: in place or carried"]);
  return [
    {
      name: "by buffer", colours: tones, legend: buffers,
      of: (i) => (placements.block[placement[i]] % QUALITATIVE.length) * HOWS.length + placements.how[placement[i]],
    },
    {
      name: "by sharing", colours: SHARING.map(parse), legend: hows.map((k) => [k, HOWS[k]]),
      of: (i) => placements.how[placement[i]],
    },
    ...groupModes(model),
    sequenceMode("by size", top.map((value, i) => value - bottom[i]), human),
    sequenceMode("by lifetime", right.map((value, i) => value - left[i]), (n) => plural(n, "point", "points")),
  ];
}

// The colours by tone, for one mode and one theme.
function palette(model, mode, look) {
  const plot = parse(look.plot);
  const ink = parse(look.ink);
  const dark = [16, 20, 28];
  const fills = mode.colours.map((colour) => mix(colour, dark, look.shade));
  const tones = new Uint8Array(model.count);
  for (let i = 0; i < model.count; i++) tones[i] = mode.of(i);
  const table = (change) => Uint32Array.from(fills, (fill) => packed(change(fill)));
  return {
    tones, fills,
    plot: packed(plot),
    fill: table((fill) => fill),
    edge: table((fill) => mix(fill, dark, 0.28)),
    dimFill: table((fill) => mix(fill, plot, 0.8)),
    dimEdge: table((fill) => mix(fill, plot, 0.68)),
    reserved: packed(mix(plot, ink, 0.1)),
    label: fills.map((fill) => (luminance(fill) > 120 ? "#12161d" : "#ffffff")),
    dimLabel: css(mix(ink, plot, 0.5)),
  };
}
