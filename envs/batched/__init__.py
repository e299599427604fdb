"""Replay of hundreds to thousands of streams at once, compiled.

``runtime.session.DecodeSession`` over ``envs.world.ReplayWorld`` is the rule: it says what a decision means. This
package is its twin in machine code, for learning; ``tests/batched`` holds it to the rule step by step, bit by bit.
What changes there has to change here: every compiled module names the one that it follows.

| file | follows |
|---|---|
| ``vec_env.py``, ``kernel/serving.py`` | ``envs/base.py``, ``DummyVecEnv``, ``Monitor`` |
| ``kernel/phases.py`` | ``runtime/session.py``, ``envs/replay/decoder.py``, ``runtime/state.py`` |
| ``kernel/rules.py``, ``kernel/observing.py`` | ``runtime/legality.py``, ``runtime/observer.py`` |
| ``kernel/room.py`` | ``runtime/memory/manager.py``, ``prefixes.py`` |
| ``kernel/blocks.py`` | ``runtime/memory/kv_store.py``, ``kv_tree.py`` |
| ``kernel/loading.py`` | ``envs/replay/loader.py``, ``clock.py`` |
| ``kernel/lookup.py``, ``grams.py`` | ``runtime/decoding/drafters/lookup.py`` |
| ``dealer.py`` | ``envs/workload.py`` |
| ``kernel/guesses.py`` | ``envs/replay/decoder.py`` |
| ``texts.py``, ``costs.py``, ``chains.py`` | nothing: answers of the bank and the cost model, written down ahead |

What an action cannot say is left out: waiting for a load, other stop rules, lengths between ``GAMMAS``. So are stored
KV on disk, and texts beyond a generation of the look-up's memory: ``BatchedReplay`` refuses such worlds.
"""

from envs.batched.vec_env import BatchedReplay

__all__ = ["BatchedReplay"]
