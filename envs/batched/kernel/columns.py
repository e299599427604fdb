"""What lies where in the arrays of the compiled replay. All streams' numbers of one kind lie in one row a stream.

A stream's state is spread over a few arrays (see ``envs.batched.kernel.tables.Streams``), each with the columns named
here. The names follow the attributes of the classes that hold the same thing in the single environment.
"""

from __future__ import annotations

# -- one stream, whole numbers: Streams.whole, shape (streams, WHOLE) ------------------------------------------------
(
    WORLD,  # index of the world this episode plays in
    PHASE,
    REQUEST,  # index of the request in hand; as many as there are requests = none
    TEXT,  # index of its text; the last one stays
    MOST,  # its max_new_tokens
    END,  # tokens at which its text ends
    GENERATED,
    SINCE,  # since_decision
    LAST_DRAFTED,
    LAST_ACCEPTED,
    MATCH_TOKENS,
    MATCH_NODE,  # slot of the last block of the match; -1 = no match
    HELD_BLOCKS,
    KV_BLOCKS,  # blocks in memory
    FREE_NODE,  # first free slot
    LEAVES_MADE,  # counts upwards whenever a block becomes a leaf
    DRAFT_BYTES,  # workspace, resident and loading drafts
    QUEUED,  # loads running or waiting
    YOUNG,  # look-up: first request whose tokens are in the younger generation
    OLD,  # first request whose tokens are remembered at all
    YOUNG_TOKENS,
    FOUND_REQUEST,  # look-up behind the committed text: request whose text matches; -1 = none
    FOUND_AT,  # position of the first guess in that text
    FOUND_LENGTH,  # equal tokens before it
    STEPS,  # decisions of the episode
    ROUNDS,
    DRAFTED,
    ACCEPTED,
    CORRECTIONS,
    ADMITTED,
    COMMITTED,
    LOADS,
    WASTED,
    EVICTIONS,
    KV_HIT,
    KV_RETAINED,
    PREFILL,
    ILLEGAL,
    PEAK,
) = range(39)
WHOLE = 39

# -- one stream, floats: Streams.real, shape (streams, REAL) ---------------------------------------------------------
(
    NOW,
    SYNCED,
    LEFT,  # progress that the running load still needs, seconds
    HIT_SHARE,
    SAVED,  # saved_s of the request in hand
    SECONDS,
    STALL,
    PLAIN_SECONDS,
    KV_SAVED,
    RETURN,  # sum of rewards
) = range(10)
REAL = 10

# -- one draft of one stream: Streams.draft_whole and draft_real -----------------------------------------------------
(
    RESIDENCY,
    USED,  # used_since_load
    HELD,  # tokens in the draft's cache
    FINISHED,  # loaded, not taken in yet
    QUEUE,  # entry j: the draft that is j-th in the loader's queue
) = range(5)
DRAFT_WHOLE = 5
USES, LAST_USED = range(2)
DRAFT_REAL = 2
ACCEPTANCE, CONFIDENCE, SEEN_AT = range(3)  # Streams.evidence, float32
EVIDENCE = 3
STORED, LOADING, RESIDENT = range(3)
"""As ``runtime.memory.manager.Residency``."""

# -- one block of KV of one stream: Streams.node -----------------------------------------------------------------------
(
    CHAIN,  # which block behind which blocks: see envs.batched.chains
    PARENT,
    FIRST_CHILD,
    LAST_CHILD,
    NEXT,  # sibling that was added after it; of a free slot the next free one
    PREVIOUS,
    DEPTH,
    HOLDS,
    HITS,
    LEAF,  # when it became a leaf; 0 = it is none
) = range(10)
NODE = 10

# -- one request of a stream: Streams.plan ---------------------------------------------------------------------------
PLAN_TEXT, PLAN_MOST, PLAN_END = range(3)
PLAN = 3

# -- one text: Tables.text -------------------------------------------------------------------------------------------
(
    PROMPT,  # tokens of the prompt
    LENGTH,  # tokens of the output
    TOKENS_AT,  # where its tokens begin in Tables.token
    PLACES_AT,  # where its places (positions of the output, and one behind) begin in Tables.guess and others
    CHAINS_AT,  # where its blocks begin in Tables.chain
) = range(5)
TEXT_COLUMNS = 5

# -- one place of a text, by draft: Tables.guess ---------------------------------------------------------------------
RUN, SENT = 0, 1  # right guesses in a row; then, by stop level, how many guesses are made if eight may be

# -- one world: Tables.world_whole and world_real ----------------------------------------------------------------------
BUDGET, FIXED, BLOCK_BYTES, TOKEN_BYTES, INTERVAL, MAX_STEPS = range(6)
WORLD_WHOLE = 6
PLAIN_S, DECODE_SLOWDOWN, LOAD_SLOWDOWN, HALF_LIFE, HALF = range(5)
WORLD_REAL = 5

# -- one draft of a world: Tables.spec and Tables.load -----------------------------------------------------------------
BYTES, LOADABLE, LIMIT = range(3)
SPEC = 3
LOAD_S, LOAD_RATIO = range(2)
LOAD = 2

# -- costs by a number of tokens: Tables.cost, one row each ------------------------------------------------------------
(
    PREFILL_S,  # prefill of so many tokens behind none
    RESTORE_S,
    STORE_S,
    BACK_S,  # prefill of a block behind so many blocks
    AGAIN,  # prefill of so many tokens, in plain steps
) = range(5)
ROUND_S = 5  # + width - 1: a round's forward behind so many tokens, widths 1 to 9
PLAIN_SUM = 14  # + n - 1: n plain steps behind so many tokens
DRAFT_S = 23  # + draft: a draft's forward over so many tokens; then, by draft, catch-up cost by tokens behind
COST_ROWS = 23
