"""Small ONNX models whose loops carry values in every pattern there is, for tests of running and planning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from tests.integrations.onnx.models import parsed

VECTOR = "float[16]"
"""64 bytes: one step of the default alignment."""


@dataclass(frozen=True)
class Carried:
    """A loop of `n` rounds: the names of its parameters, the nodes of its body, and what each parameter becomes.

    For each parameter %a there is the initial value %a0 and the final one %af. Nodes may read the counter %i,
    and %k, an input of the model. `body`, `updates` and `after`, nodes behind the loop, are ONNX's text form.
    """

    names: str
    body: str
    updates: str
    after: str = ""
    outputs: str = ""
    spec: str = VECTOR
    inputs: str = ""

    def model(self) -> onnx.ModelProto:
        """The model; every update goes through an Identity, as exporters write it."""
        names, updates = self.names.split(), self.updates.split()
        initial = ", ".join(f"{self.spec} {name}0" for name in names)
        outputs = self.outputs.split() or [f"{name}f" for name in names]
        results = ", ".join(f"{self.spec} {update}_{i}" for i, update in enumerate(updates))
        return parsed(f"""g (int64 n, {initial}, {self.inputs or f"{self.spec} k"}) =>
            ({", ".join(f"{self.spec} {name}" for name in outputs)}) {{
          yes = Constant <value = bool {{1}}> ()
          {", ".join(f"{name}f" for name in names)} = Loop (n, yes, {", ".join(f"{name}0" for name in names)}) <
            body = step (int64 i, bool on, {", ".join(f"{self.spec} {name}" for name in names)})
                => (bool go, {results}) {{
              go = Identity(on)
              {self.body}
              {" ".join(f"{update}_{i} = Identity({update})" for i, update in enumerate(updates))}
            }}
          >
          {self.after}
        }}""")


CARRIED: Mapping[str, Carried] = {
    "fibonacci": Carried("a b", "s = Add(a, b)", "b s"),
    "swap": Carried("a b", "", "b a"),
    "rotation of three": Carried("a b c", "", "b c a"),
    "delay line of five": Carried("a b c d e", "s = Sin(a)", "b c d e s"),
    "x[c] = f(x[c-4])": Carried("a b c d", "s = Cos(a)", "b c d s"),
    "one update for two": Carried("a b", "s = Sub(a, b)", "s s"),
    "one update for two, and a delay": Carried("a b c", "s = Sin(a)", "b s s"),
    "a captured value": Carried("a b", "s = Add(a, b)", "k s"),
    "nothing changes": Carried("a b", "", "a b"),
    "swap beside rotation": Carried("a b p q r", "", "b a q r p"),
    "swap beside rotation beside delay": Carried(
        "a b p q r u v w x", "z = Sin(u)", "b a q r p v w x z", outputs="af pf uf"
    ),
    "swap of two new values": Carried("a b", "s = Add(a, b) d = Sub(a, b)", "d s"),
    "initial value read afterwards": Carried("a b", "s = Add(a, b)", "b s", after="y = Add(a0, bf)", outputs="y af"),
    "one initial value for all": Carried("a b c", "s = Sin(a)", "b c s", after="y = Sum(af, bf, cf, k)", outputs="y"),
    "through a view": Carried(
        "a b", "z = Constant <value = int64 {0}> () v = Identity(a) s = CumSum(v, z) t = Mul(s, k)", "b t"
    ),
    "one carry through a view": Carried(
        "a", "z = Constant <value = int64 {0}> () v = Identity(a) s = CumSum(v, z)", "s"
    ),
    "the counter counts": Carried("a b", "f = Cast <to = 1> (i) s = Add(a, f)", "b s"),
}
"""Loops that move no byte."""

CONVOLUTION = Carried(
    "x",
    "y = Conv <pads = [1, 1, 1, 1]> (x, w, bias)",
    "y",
    after="z = Add(x0, xf)",
    outputs="z",
    spec="float[1,4,5,5]",
    inputs="float[4,4,3,3] w, float[4] bias",
)
"""x <- conv(x) again and again, and x0 is read afterwards."""

LOOP_IN_LOOP = """g (int64 n, int64 m, float[16] a0, float[16] b0) => (float[16] af, float[16] bf) {
  yes = Constant <value = bool {1}> ()
  af, bf = Loop (n, yes, a0, b0) <
    body = outer (int64 i, bool on, float[16] a, float[16] b) => (bool go, float[16] an, float[16] bn) {
      go = Identity(on)
      left = Sub(m, i)
      p, q = Loop (left, on, a, b) <
        body = inner (int64 j, bool on2, float[16] c, float[16] d) => (bool go2, float[16] cn, float[16] dn) {
          go2 = Identity(on2)
          dn = Sub(c, d)
          cn = Identity(d)
        }
      >
      an = Sin(q)
      bn = Identity(p)
    }
  >
}"""

"""The inner loop runs m rounds, then m - 1, and so on."""

BRANCH_IN_LOOP = """g (int64 n, float[16] a0, float[16] b0) => (float[16] af, float[16] bf) {
  yes = Constant <value = bool {1}> ()
  two = Constant <value = int64 {2}> ()
  zero = Constant <value = int64 {0}> ()
  af, bf = Loop (n, yes, a0, b0) <
    body = round (int64 i, bool on, float[16] a, float[16] b) => (bool go, float[16] an, float[16] bn) {
      go = Identity(on)
      rest = Mod(i, two)
      even = Equal(rest, zero)
      s, t = If (even) <
        then_branch = keep () => (float[16] ka, float[16] kb) { ka = Add(a, b) kb = Identity(a) },
        else_branch = turn () => (float[16] ta, float[16] tb) { ta = Identity(b) tb = Sin(a) }
      >
      an = Identity(t)
      bn = Identity(s)
    }
  >
}"""

LOOP_IN_BRANCH = """g (bool c, int64 n, float[16] a0, float[16] b0) => (float[16] y, float[16] z) {
  yes = Constant <value = bool {1}> ()
  y, z = If (c) <
    then_branch = loops () => (float[16] p, float[16] q) {
      p, q = Loop (n, yes, a0, b0) <
        body = round (int64 i, bool on, float[16] a, float[16] b) => (bool go, float[16] an, float[16] bn) {
          go = Identity(on)
          bn = Sub(a, b)
          an = Identity(b)
        }
      >
    },
    else_branch = not () => (float[16] r, float[16] s) { r = Identity(b0) s = Sin(a0) }
  >
}"""

BRANCH_BEFORE_LOOP = """g (bool c, int64 n, float[16] x0) => (float[16] y) {
  yes = Constant <value = bool {1}> ()
  two = Constant <value = int64 {2}> ()
  zero = Constant <value = int64 {0}> ()
  x = If (c) <
    then_branch = made () => (float[16] p) { p = CumSum(x0, zero) },
    else_branch = given () => (float[16] q) { q = Identity(x0) }
  >
  last = Loop (n, yes, x) <
    body = round (int64 i, bool on, float[16] a) => (bool go, float[16] an) {
      go = Identity(on)
      rest = Mod(i, two)
      even = Equal(rest, zero)
      an = If (even) <
        then_branch = keep () => (float[16] k) { k = Identity(a) },
        else_branch = change () => (float[16] m) { m = CumSum(a, zero) }
      >
    }
  >
  y = Softmax(last)
}"""
"""The loop may hand on, round after round, what the branch before it has chosen."""

HALVING = """g (float[16] a0, float[16] b0, float limit) => (float[16] af, float[16] bf) {
  none = Constant <value = int64 {1000}> ()
  yes = Constant <value = bool {1}> ()
  half = Constant <value = float {0.5}> ()
  af, bf = Loop (none, yes, a0, b0) <
    body = round (int64 i, bool on, float[16] a, float[16] b) => (bool go, float[16] an, float[16] bn) {
      bn = Mul(a, half)
      an = Identity(b)
      most = ReduceMax <keepdims = 0> (bn)
      go = Less(limit, most)
    }
  >
}"""
"""Goes on while the largest element is above a limit."""

SCAN = """g (float[16] a0, float[16] b0, float[9,16] xs) => (float[16] af, float[16] bf, float[9,16] ys) {
  af, bf, ys = Scan <num_scan_inputs = 1,
    body = step (float[16] a, float[16] b, float[16] x) => (float[16] an, float[16] bn, float[16] y) {
      bn = Add(a, x)
      an = Identity(b)
      y = Mul(b, x)
    }
  > (a0, b0, xs)
}"""


def feeds_for(names: Sequence[str], shapes: Mapping[str, Sequence[int]], **given: np.ndarray) -> dict[str, np.ndarray]:
    """Random floats for every name that is not given."""
    rng = np.random.default_rng(7)
    return {
        name: given[name] if name in given else np.asarray(rng.standard_normal(tuple(shapes[name])), np.float32)
        for name in names
    }
