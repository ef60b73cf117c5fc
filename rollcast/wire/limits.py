"""Declare every limit on what may come from the network.

Each limit is checked before memory is spent on what it limits. All are far above honest use; configuration may only
be stricter.
"""

from __future__ import annotations

# ---------------------------------------------------------------- numbers

COUNTER_MAX = 2**63 - 1
"""Largest id, version, step and epoch: what SQLite and numpy hold in a signed integer."""
TOKEN_ID_MAX = 2**31 - 1
"""Largest token id: arrays of them are int32."""
DURATION_S_MAX = 30 * 86400.0
"""Longest duration in a message, in seconds."""
RATE_MAX = 1e12
"""Highest rate in a message: bytes or tokens a second."""

# ---------------------------------------------------------------- games

AGENTS_MAX = 16
"""Agents of one game of an environment."""

# ---------------------------------------------------------------- text

TOKEN_NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
"""Names of access tokens, as the audit log shows them."""
PEER_ID_LENGTH_MAX = 64
"""Characters of a peer id; the libp2p form has 52."""
TEXT_LENGTH_MAX = 1024
"""Characters of a reason, a name or a software string."""
INVITE_LENGTH_MAX = 4096
"""Characters of an invite."""

# ---------------------------------------------------------------- gRPC and HTTP

GRPC_MESSAGE_BYTES_MAX = 16 << 20
"""Bytes of one gRPC message, sent or received."""
HTTP_JOIN_BYTES_MAX = 64 << 10
"""Bytes in the body of a join request or of any answer to it."""

# ---------------------------------------------------------------- profiles

PROFILE_STEPS_MAX = 20
"""Learner steps in one profile: a trace grows with each, and XProf cannot read one of more than 2 GiB."""
PROFILE_ID_LENGTH_MAX = 32
"""Characters of a profile's id."""

# ---------------------------------------------------------------- leases and rollouts

PROMPT_TOKENS_MAX = 1 << 18
"""Tokens of one prompt."""
ROLLOUT_TOKENS_MAX = 1 << 20
"""Tokens of one completion, all segments together."""
SEGMENTS_MAX = 256
"""Segments of one rollout."""
SLOTS_PER_LEASE_MAX = 4096
"""Samples of one lease."""
HELD_LEASES_MAX = 1 << 16
"""Leases that a peer may name when it reconnects."""
STOP_TOKENS_MAX = 8
"""Stop tokens of one lease, a fixed-size argument of the compiled decode loop; published models have one to three."""
STOP_STRINGS_MAX = 16
"""Stop strings of one lease."""
STOP_STRING_LENGTH_MAX = 256
"""Characters of one stop string."""
TEMPERATURE_MAX = 100.0
"""Highest sampling temperature; 0 is greedy."""
ROUTES_BYTES_MAX = 12 << 20
"""Bytes of one rollout's routes. They are its largest part, and a rollout must fit into a message: these are 32,768
tokens of a model with 48 layers and 8 of 128 experts for each token."""
ROLLOUTS_PER_UPLOAD_MAX = 4096
"""Rollouts in one upload message."""

# ---------------------------------------------------------------- versions

STATE_BYTES_MAX = 1 << 38
"""Bytes of one version's state: 256 GiB."""
TENSORS_MAX = 1 << 16
"""Tensors of one version."""
TENSOR_RANK_MAX = 8
"""Dimensions of one tensor."""
TENSOR_NAME_LENGTH_MAX = 128
"""Characters of a tensor's name."""
MODEL_JSON_LENGTH_MAX = 64 << 10
"""Characters of the architecture in a version record."""
RECORD_BYTES_MAX = 12 << 20
"""Bytes of one serialized version record."""
MANIFEST_BYTES_MAX = 4 << 10
"""Bytes of one serialized manifest."""
ENCODINGS_MAX = 64
"""Encodings (keyframe and deltas) of one version."""

# ---------------------------------------------------------------- chunks and links

CHUNK_SIZE_BYTES_MIN = 1 << 10
"""Least bytes of a chunk: smaller ones would be mostly hashes and headers."""
CHUNK_SIZE_BYTES_MAX = 1 << 20
"""Most bytes of a chunk: larger ones would make relaying too coarse."""
CHUNK_COUNT_MAX = 1 << 18
"""Chunks of one encoding: their list of hashes has at most 8 MiB."""
LINK_CONTROL_BYTES_MAX = 16 << 20
"""Bytes of one control message on a chunk link; a chunk list is the longest."""
LINK_WAITING_BYTES_MAX = LINK_CONTROL_BYTES_MAX + CHUNK_SIZE_BYTES_MAX
"""Bytes waiting to be sent on a link before the link is closed. An honest one has a chunk and a few control
messages."""
LINK_SHORT_BYTES_MAX = 256 << 10
"""Bytes of one control message that is neither an announcement nor a chunk list.

Parsing a message of many small parts takes up to 28 times its bytes of memory."""
CERTIFICATE_BYTES_MAX = 16 << 10
"""Bytes of a certificate in a greeting."""
CREDIT_CHUNKS_MAX = 4096
"""Chunks that one message about chunks passed on, or received another way, may name."""
REQUEST_CHUNKS_MAX = 1024
"""Chunks that one request may name."""
STRIPES_MAX = 1 << 15
"""Stripes of a relay plan; a chunk frame has two bytes for the stripe."""
PROBE_BYTES_MAX = 16 << 20
"""Bytes of padding that one probe may send."""
PADDING_BYTES_MAX = 64 << 10
"""Bytes of padding in one message."""
LINK_REPORTS_MAX = 64
"""Links in one heartbeat."""
HEAT_MAP_CELLS_MAX = 128
"""Cells of the chunk heat map in one heartbeat, a byte each."""
SILENT_S = 2.5
"""Seconds without a heartbeat after which a member is shown as silent; heartbeats come every second."""
BANNED_MAX = 256
"""Banned members that are reported to peers; the ones banned longest ago are left out first."""
PEER_RECORDS_MAX = 32
"""Peer records in one message."""
PEER_ADDRESSES_MAX = 6
"""Addresses in one peer record."""
PEER_ADDRESS_LENGTH_MAX = 256
"""Characters of one peer address; the address of a circuit has some 140."""
PEER_MESSAGE_BYTES_MAX = 256 << 10
"""Bytes of one message of a peer's session: an honest one has some KiB, and parsing multiplies its memory."""
RECEIPT_BYTES_MAX = 1 << 10
"""A signed receipt for one chunk, in bytes."""
PEER_RECORD_BYTES_MAX = 4 << 10
"""Bytes of one signed peer record: a few addresses, a key and a signature."""

# ---------------------------------------------------------------- deltas

DELTA_BLOCK_BYTES = 1 << 21
"""Bytes of a tensor in one record of a delta.

This is part of the format. Decoding needs memory for one block besides the state."""
DELTA_WINDOW_BYTES_MAX = 1 << 23
"""Bytes of the window of a zstd frame in a delta; no stream of a block is longer than a block and its escapes."""

# ---------------------------------------------------------------- tokenizer

TOKENIZER_JSON_LENGTH_MAX = 1 << 20
"""Characters of a tokenizer in JSON."""
