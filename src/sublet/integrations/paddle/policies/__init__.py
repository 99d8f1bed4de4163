"""Policies: rewrite a program to hold fewer bytes. Each policy maps a program to a program.

`levels.py` holds the policies of Paddle by levels. Sublet's own policy, for the ordinary executor, has six passes, each
from a program to a program that computes the same bits:

- optimizer operators run early;
- gradient blocks take shapes from tensors present anyway;
- loops do not copy read-only inputs;
- outputs take over the memory of inputs at their last use;
- temporaries of an iteration move outside of the loop;
- operators after an update wait for the update, and for the free of its gradient.

Apart from these cases, the policy reuses no name of a dead value: the executor frees a tensor at its last mention, and
a later reuse of the name would hold the bytes in between.
"""

from sublet.integrations.paddle.policies.policy import PASSES, apply_own_policy

__all__ = ["PASSES", "apply_own_policy"]
