from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EncodingKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_KIND_UNSPECIFIED: _ClassVar[EncodingKind]
    KEYFRAME: _ClassVar[EncodingKind]
    DELTA: _ClassVar[EncodingKind]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    STOP: _ClassVar[FinishReason]
    LENGTH: _ClassVar[FinishReason]
    INTERRUPTED: _ClassVar[FinishReason]

class SegmentRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENT_ROLE_UNSPECIFIED: _ClassVar[SegmentRole]
    ASSISTANT: _ClassVar[SegmentRole]
    TOOL: _ClassVar[SegmentRole]
    USER: _ClassVar[SegmentRole]

class LeaseKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_KIND_UNSPECIFIED: _ClassVar[LeaseKind]
    TRAINING: _ClassVar[LeaseKind]
    EVALUATION: _ClassVar[LeaseKind]
ENCODING_KIND_UNSPECIFIED: EncodingKind
KEYFRAME: EncodingKind
DELTA: EncodingKind
FINISH_REASON_UNSPECIFIED: FinishReason
STOP: FinishReason
LENGTH: FinishReason
INTERRUPTED: FinishReason
SEGMENT_ROLE_UNSPECIFIED: SegmentRole
ASSISTANT: SegmentRole
TOOL: SegmentRole
USER: SegmentRole
LEASE_KIND_UNSPECIFIED: LeaseKind
TRAINING: LeaseKind
EVALUATION: LeaseKind

class Signed(_message.Message):
    __slots__ = ("payload", "signature", "public_key")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    signature: bytes
    public_key: bytes
    def __init__(self, payload: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., public_key: _Optional[bytes] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "offset_bytes", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset_bytes: int
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., offset_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class VersionRecord(_message.Message):
    __slots__ = ("run_id", "epoch", "version", "parent_hash", "state_hash", "state_size_bytes", "tensors", "model_json", "base")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_HASH_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    STATE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    MODEL_JSON_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    version: int
    parent_hash: bytes
    state_hash: bytes
    state_size_bytes: int
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    model_json: str
    base: BaseRef
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., parent_hash: _Optional[bytes] = ..., state_hash: _Optional[bytes] = ..., state_size_bytes: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., model_json: _Optional[str] = ..., base: _Optional[_Union[BaseRef, _Mapping]] = ...) -> None: ...

class BaseRef(_message.Message):
    __slots__ = ("version", "state_hash")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    version: int
    state_hash: bytes
    def __init__(self, version: _Optional[int] = ..., state_hash: _Optional[bytes] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("run_id", "epoch", "version", "encoding_id", "kind", "base_version", "compression", "record_hash", "size_bytes", "chunk_size_bytes", "chunk_count", "chunk_list_hash")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    RECORD_HASH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_LIST_HASH_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    version: int
    encoding_id: int
    kind: EncodingKind
    base_version: int
    compression: str
    record_hash: bytes
    size_bytes: int
    chunk_size_bytes: int
    chunk_count: int
    chunk_list_hash: bytes
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., encoding_id: _Optional[int] = ..., kind: _Optional[_Union[EncodingKind, str]] = ..., base_version: _Optional[int] = ..., compression: _Optional[str] = ..., record_hash: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., chunk_size_bytes: _Optional[int] = ..., chunk_count: _Optional[int] = ..., chunk_list_hash: _Optional[bytes] = ...) -> None: ...

class VersionAnnouncement(_message.Message):
    __slots__ = ("record", "manifests", "base")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    record: Signed
    manifests: _containers.RepeatedCompositeFieldContainer[Signed]
    base: VersionAnnouncement
    def __init__(self, record: _Optional[_Union[Signed, _Mapping]] = ..., manifests: _Optional[_Iterable[_Union[Signed, _Mapping]]] = ..., base: _Optional[_Union[VersionAnnouncement, _Mapping]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("role", "epoch", "version", "peer_id", "packed_ids", "loss_mask", "reported_logprobs", "routes", "context_routes", "sampler")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    PACKED_IDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_MASK_FIELD_NUMBER: _ClassVar[int]
    REPORTED_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_ROUTES_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    role: SegmentRole
    epoch: int
    version: int
    peer_id: str
    packed_ids: bytes
    loss_mask: bytes
    reported_logprobs: _containers.RepeatedScalarFieldContainer[float]
    routes: bytes
    context_routes: bytes
    sampler: str
    def __init__(self, role: _Optional[_Union[SegmentRole, str]] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., peer_id: _Optional[str] = ..., packed_ids: _Optional[bytes] = ..., loss_mask: _Optional[bytes] = ..., reported_logprobs: _Optional[_Iterable[float]] = ..., routes: _Optional[bytes] = ..., context_routes: _Optional[bytes] = ..., sampler: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "max_new_tokens", "stop_token_ids", "stop_strings")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    max_new_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_strings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, temperature: _Optional[float] = ..., max_new_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., stop_strings: _Optional[_Iterable[str]] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("sample_index", "seed", "prefix")
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    sample_index: int
    seed: int
    prefix: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, sample_index: _Optional[int] = ..., seed: _Optional[int] = ..., prefix: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("lease_id", "fencing_token", "group_id", "prompt_token_ids", "slots", "sampling", "deadline_s", "epoch", "oldest_useful_version", "kind", "oldest_own_version", "keep_version_s")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OLDEST_USEFUL_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    OLDEST_OWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEEP_VERSION_S_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    fencing_token: int
    group_id: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    slots: _containers.RepeatedCompositeFieldContainer[Slot]
    sampling: Sampling
    deadline_s: float
    epoch: int
    oldest_useful_version: int
    kind: LeaseKind
    oldest_own_version: int
    keep_version_s: float
    def __init__(self, lease_id: _Optional[int] = ..., fencing_token: _Optional[int] = ..., group_id: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., slots: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., deadline_s: _Optional[float] = ..., epoch: _Optional[int] = ..., oldest_useful_version: _Optional[int] = ..., kind: _Optional[_Union[LeaseKind, str]] = ..., oldest_own_version: _Optional[int] = ..., keep_version_s: _Optional[float] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("lease_id", "fencing_token", "group_id", "sample_index", "segments", "finish_reason", "generate_s", "prefix_digest")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    GENERATE_S_FIELD_NUMBER: _ClassVar[int]
    PREFIX_DIGEST_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    fencing_token: int
    group_id: int
    sample_index: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    finish_reason: FinishReason
    generate_s: float
    prefix_digest: bytes
    def __init__(self, lease_id: _Optional[int] = ..., fencing_token: _Optional[int] = ..., group_id: _Optional[int] = ..., sample_index: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., generate_s: _Optional[float] = ..., prefix_digest: _Optional[bytes] = ...) -> None: ...

class PartialRollout(_message.Message):
    __slots__ = ("lease_id", "fencing_token", "sample_index", "position", "segments")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    fencing_token: int
    sample_index: int
    position: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, lease_id: _Optional[int] = ..., fencing_token: _Optional[int] = ..., sample_index: _Optional[int] = ..., position: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class RolloutUpload(_message.Message):
    __slots__ = ("rollouts",)
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[Rollout]
    def __init__(self, rollouts: _Optional[_Iterable[_Union[Rollout, _Mapping]]] = ...) -> None: ...

class RolloutVerdict(_message.Message):
    __slots__ = ("lease_id", "sample_index", "accepted", "reason")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    sample_index: int
    accepted: bool
    reason: str
    def __init__(self, lease_id: _Optional[int] = ..., sample_index: _Optional[int] = ..., accepted: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ("verdicts",)
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[RolloutVerdict]
    def __init__(self, verdicts: _Optional[_Iterable[_Union[RolloutVerdict, _Mapping]]] = ...) -> None: ...

class ProtocolRange(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "software", "role", "advertise", "concurrent_rollouts", "hardware", "held_versions", "name", "region", "metered", "upload_cap_bytes_per_second", "has_held_leases", "held_leases", "instance_id", "public_name", "sampler", "cell")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADVERTISE_FIELD_NUMBER: _ClassVar[int]
    CONCURRENT_ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    HELD_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    METERED_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_CAP_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    HAS_HELD_LEASES_FIELD_NUMBER: _ClassVar[int]
    HELD_LEASES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_NAME_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    CELL_FIELD_NUMBER: _ClassVar[int]
    protocol: ProtocolRange
    software: str
    role: str
    advertise: str
    concurrent_rollouts: int
    hardware: str
    held_versions: _containers.RepeatedScalarFieldContainer[int]
    name: str
    region: str
    metered: bool
    upload_cap_bytes_per_second: float
    has_held_leases: bool
    held_leases: _containers.RepeatedScalarFieldContainer[int]
    instance_id: str
    public_name: str
    sampler: str
    cell: bool
    def __init__(self, protocol: _Optional[_Union[ProtocolRange, _Mapping]] = ..., software: _Optional[str] = ..., role: _Optional[str] = ..., advertise: _Optional[str] = ..., concurrent_rollouts: _Optional[int] = ..., hardware: _Optional[str] = ..., held_versions: _Optional[_Iterable[int]] = ..., name: _Optional[str] = ..., region: _Optional[str] = ..., metered: _Optional[bool] = ..., upload_cap_bytes_per_second: _Optional[float] = ..., has_held_leases: _Optional[bool] = ..., held_leases: _Optional[_Iterable[int]] = ..., instance_id: _Optional[str] = ..., public_name: _Optional[str] = ..., sampler: _Optional[str] = ..., cell: _Optional[bool] = ...) -> None: ...

class LinkReport(_message.Message):
    __slots__ = ("peer_id", "transport", "rtt_s", "bytes_sent", "bytes_received", "sent_bytes_per_second", "congestion_control", "lan", "lost_share", "window_limited_share")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    RTT_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CONGESTION_CONTROL_FIELD_NUMBER: _ClassVar[int]
    LAN_FIELD_NUMBER: _ClassVar[int]
    LOST_SHARE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_LIMITED_SHARE_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    transport: str
    rtt_s: float
    bytes_sent: int
    bytes_received: int
    sent_bytes_per_second: float
    congestion_control: str
    lan: bool
    lost_share: float
    window_limited_share: float
    def __init__(self, peer_id: _Optional[str] = ..., transport: _Optional[str] = ..., rtt_s: _Optional[float] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., sent_bytes_per_second: _Optional[float] = ..., congestion_control: _Optional[str] = ..., lan: _Optional[bool] = ..., lost_share: _Optional[float] = ..., window_limited_share: _Optional[float] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence", "state", "reason", "has_active_version", "active_version", "tokens_generated", "chunk_bytes_from_origin", "chunk_bytes_from_peers", "chunk_bytes_sent", "chunks_rejected", "receiving_version", "receiving_chunks_have", "receiving_chunks_total", "tokens_per_second", "uplink_bytes_per_second", "uplink_measured_s", "uplink_age_s", "downlink_bytes_per_second", "links", "chunks_duplicate", "chunks_hedged", "reparentings", "delta_bytes_saved", "receiving_encoding_id", "receiving_map", "uplink_probe_id", "sending_stopped", "receiving_stopped", "p2p", "swap", "engine_devices", "engine_versions", "loop_lag_s", "addresses_refused", "cell_workers", "cell_slots", "links_left_out")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HAS_ACTIVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FROM_ORIGIN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FROM_PEERS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_REJECTED_FIELD_NUMBER: _ClassVar[int]
    RECEIVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    RECEIVING_CHUNKS_HAVE_FIELD_NUMBER: _ClassVar[int]
    RECEIVING_CHUNKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    UPLINK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    UPLINK_MEASURED_S_FIELD_NUMBER: _ClassVar[int]
    UPLINK_AGE_S_FIELD_NUMBER: _ClassVar[int]
    DOWNLINK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_HEDGED_FIELD_NUMBER: _ClassVar[int]
    REPARENTINGS_FIELD_NUMBER: _ClassVar[int]
    DELTA_BYTES_SAVED_FIELD_NUMBER: _ClassVar[int]
    RECEIVING_ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVING_MAP_FIELD_NUMBER: _ClassVar[int]
    UPLINK_PROBE_ID_FIELD_NUMBER: _ClassVar[int]
    SENDING_STOPPED_FIELD_NUMBER: _ClassVar[int]
    RECEIVING_STOPPED_FIELD_NUMBER: _ClassVar[int]
    P2P_FIELD_NUMBER: _ClassVar[int]
    SWAP_FIELD_NUMBER: _ClassVar[int]
    ENGINE_DEVICES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LOOP_LAG_S_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_REFUSED_FIELD_NUMBER: _ClassVar[int]
    CELL_WORKERS_FIELD_NUMBER: _ClassVar[int]
    CELL_SLOTS_FIELD_NUMBER: _ClassVar[int]
    LINKS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    state: str
    reason: str
    has_active_version: bool
    active_version: int
    tokens_generated: int
    chunk_bytes_from_origin: int
    chunk_bytes_from_peers: int
    chunk_bytes_sent: int
    chunks_rejected: int
    receiving_version: int
    receiving_chunks_have: int
    receiving_chunks_total: int
    tokens_per_second: float
    uplink_bytes_per_second: float
    uplink_measured_s: float
    uplink_age_s: float
    downlink_bytes_per_second: float
    links: _containers.RepeatedCompositeFieldContainer[LinkReport]
    chunks_duplicate: int
    chunks_hedged: int
    reparentings: int
    delta_bytes_saved: int
    receiving_encoding_id: int
    receiving_map: bytes
    uplink_probe_id: int
    sending_stopped: bool
    receiving_stopped: bool
    p2p: str
    swap: SwapReport
    engine_devices: int
    engine_versions: int
    loop_lag_s: float
    addresses_refused: int
    cell_workers: int
    cell_slots: int
    links_left_out: bool
    def __init__(self, sequence: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., has_active_version: _Optional[bool] = ..., active_version: _Optional[int] = ..., tokens_generated: _Optional[int] = ..., chunk_bytes_from_origin: _Optional[int] = ..., chunk_bytes_from_peers: _Optional[int] = ..., chunk_bytes_sent: _Optional[int] = ..., chunks_rejected: _Optional[int] = ..., receiving_version: _Optional[int] = ..., receiving_chunks_have: _Optional[int] = ..., receiving_chunks_total: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., uplink_bytes_per_second: _Optional[float] = ..., uplink_measured_s: _Optional[float] = ..., uplink_age_s: _Optional[float] = ..., downlink_bytes_per_second: _Optional[float] = ..., links: _Optional[_Iterable[_Union[LinkReport, _Mapping]]] = ..., chunks_duplicate: _Optional[int] = ..., chunks_hedged: _Optional[int] = ..., reparentings: _Optional[int] = ..., delta_bytes_saved: _Optional[int] = ..., receiving_encoding_id: _Optional[int] = ..., receiving_map: _Optional[bytes] = ..., uplink_probe_id: _Optional[int] = ..., sending_stopped: _Optional[bool] = ..., receiving_stopped: _Optional[bool] = ..., p2p: _Optional[str] = ..., swap: _Optional[_Union[SwapReport, _Mapping]] = ..., engine_devices: _Optional[int] = ..., engine_versions: _Optional[int] = ..., loop_lag_s: _Optional[float] = ..., addresses_refused: _Optional[int] = ..., cell_workers: _Optional[int] = ..., cell_slots: _Optional[int] = ..., links_left_out: _Optional[bool] = ...) -> None: ...

class SwapReport(_message.Message):
    __slots__ = ("version", "kind", "paused_s", "moved_bytes", "read_back")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAUSED_S_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_BACK_FIELD_NUMBER: _ClassVar[int]
    version: int
    kind: str
    paused_s: float
    moved_bytes: int
    read_back: bool
    def __init__(self, version: _Optional[int] = ..., kind: _Optional[str] = ..., paused_s: _Optional[float] = ..., moved_bytes: _Optional[int] = ..., read_back: _Optional[bool] = ...) -> None: ...

class WorkRequest(_message.Message):
    __slots__ = ("free_slots",)
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    free_slots: int
    def __init__(self, free_slots: _Optional[int] = ...) -> None: ...

class VersionHeld(_message.Message):
    __slots__ = ("epoch", "version", "bytes_received")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    bytes_received: int
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., bytes_received: _Optional[int] = ...) -> None: ...

class LeaseReturn(_message.Message):
    __slots__ = ("lease_ids", "reason")
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class Accusation(_message.Message):
    __slots__ = ("culprit_peer_id", "version", "chunk_index", "reason", "encoding_id", "receipt", "list_block", "list_block_hashes")
    CULPRIT_PEER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    LIST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LIST_BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    culprit_peer_id: str
    version: int
    chunk_index: int
    reason: str
    encoding_id: int
    receipt: Signed
    list_block: bytes
    list_block_hashes: bytes
    def __init__(self, culprit_peer_id: _Optional[str] = ..., version: _Optional[int] = ..., chunk_index: _Optional[int] = ..., reason: _Optional[str] = ..., encoding_id: _Optional[int] = ..., receipt: _Optional[_Union[Signed, _Mapping]] = ..., list_block: _Optional[bytes] = ..., list_block_hashes: _Optional[bytes] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CertificateRequest(_message.Message):
    __slots__ = ("csr_pem",)
    CSR_PEM_FIELD_NUMBER: _ClassVar[int]
    csr_pem: bytes
    def __init__(self, csr_pem: _Optional[bytes] = ...) -> None: ...

class Reachability(_message.Message):
    __slots__ = ("nat", "punch_address", "circuits", "relay_address", "advertise", "local_address", "punch_address_ipv6")
    NAT_FIELD_NUMBER: _ClassVar[int]
    PUNCH_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CIRCUITS_FIELD_NUMBER: _ClassVar[int]
    RELAY_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ADVERTISE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PUNCH_ADDRESS_IPV6_FIELD_NUMBER: _ClassVar[int]
    nat: str
    punch_address: str
    circuits: _containers.RepeatedScalarFieldContainer[str]
    relay_address: str
    advertise: str
    local_address: str
    punch_address_ipv6: str
    def __init__(self, nat: _Optional[str] = ..., punch_address: _Optional[str] = ..., circuits: _Optional[_Iterable[str]] = ..., relay_address: _Optional[str] = ..., advertise: _Optional[str] = ..., local_address: _Optional[str] = ..., punch_address_ipv6: _Optional[str] = ...) -> None: ...

class PunchRequest(_message.Message):
    __slots__ = ("peer_id",)
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    def __init__(self, peer_id: _Optional[str] = ...) -> None: ...

class PunchOutcome(_message.Message):
    __slots__ = ("punch_id", "opened", "seconds")
    PUNCH_ID_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    punch_id: int
    opened: bool
    seconds: float
    def __init__(self, punch_id: _Optional[int] = ..., opened: _Optional[bool] = ..., seconds: _Optional[float] = ...) -> None: ...

class Punch(_message.Message):
    __slots__ = ("punch_id", "peer_id", "role", "address", "serves", "asked", "deadline_s", "refused", "address_ipv6")
    PUNCH_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SERVES_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_IPV6_FIELD_NUMBER: _ClassVar[int]
    punch_id: int
    peer_id: str
    role: str
    address: str
    serves: bool
    asked: bool
    deadline_s: float
    refused: str
    address_ipv6: str
    def __init__(self, punch_id: _Optional[int] = ..., peer_id: _Optional[str] = ..., role: _Optional[str] = ..., address: _Optional[str] = ..., serves: _Optional[bool] = ..., asked: _Optional[bool] = ..., deadline_s: _Optional[float] = ..., refused: _Optional[str] = ..., address_ipv6: _Optional[str] = ...) -> None: ...

class DialBack(_message.Message):
    __slots__ = ("check_id", "peer_id", "address")
    CHECK_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    check_id: int
    peer_id: str
    address: str
    def __init__(self, check_id: _Optional[int] = ..., peer_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class DialBackOutcome(_message.Message):
    __slots__ = ("check_id", "reached", "problem")
    CHECK_ID_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    check_id: int
    reached: bool
    problem: str
    def __init__(self, check_id: _Optional[int] = ..., reached: _Optional[bool] = ..., problem: _Optional[str] = ...) -> None: ...

class DialVerdict(_message.Message):
    __slots__ = ("address", "dialable", "asked", "reached", "problem")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DIALABLE_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    address: str
    dialable: bool
    asked: int
    reached: int
    problem: str
    def __init__(self, address: _Optional[str] = ..., dialable: _Optional[bool] = ..., asked: _Optional[int] = ..., reached: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class CircuitRelays(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class Banned(_message.Message):
    __slots__ = ("peer_ids", "pardoned")
    PEER_IDS_FIELD_NUMBER: _ClassVar[int]
    PARDONED_FIELD_NUMBER: _ClassVar[int]
    peer_ids: _containers.RepeatedScalarFieldContainer[str]
    pardoned: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, peer_ids: _Optional[_Iterable[str]] = ..., pardoned: _Optional[_Iterable[str]] = ...) -> None: ...

class PeerRecord(_message.Message):
    __slots__ = ("run_id", "peer_id", "role", "sequence", "addresses", "expires_unix_s")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    peer_id: str
    role: str
    sequence: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    expires_unix_s: int
    def __init__(self, run_id: _Optional[str] = ..., peer_id: _Optional[str] = ..., role: _Optional[str] = ..., sequence: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., expires_unix_s: _Optional[int] = ...) -> None: ...

class PeerRecords(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Signed]
    def __init__(self, records: _Optional[_Iterable[_Union[Signed, _Mapping]]] = ...) -> None: ...

class PeerMessage(_message.Message):
    __slots__ = ("hello", "heartbeat", "work_request", "version_held", "lease_return", "accusation", "goodbye", "certificate_request", "partial_rollout", "reachability", "punch_request", "punch_outcome", "dial_back_outcome", "peer_records")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    WORK_REQUEST_FIELD_NUMBER: _ClassVar[int]
    VERSION_HELD_FIELD_NUMBER: _ClassVar[int]
    LEASE_RETURN_FIELD_NUMBER: _ClassVar[int]
    ACCUSATION_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    REACHABILITY_FIELD_NUMBER: _ClassVar[int]
    PUNCH_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PUNCH_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DIAL_BACK_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PEER_RECORDS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    work_request: WorkRequest
    version_held: VersionHeld
    lease_return: LeaseReturn
    accusation: Accusation
    goodbye: Goodbye
    certificate_request: CertificateRequest
    partial_rollout: PartialRollout
    reachability: Reachability
    punch_request: PunchRequest
    punch_outcome: PunchOutcome
    dial_back_outcome: DialBackOutcome
    peer_records: PeerRecords
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., work_request: _Optional[_Union[WorkRequest, _Mapping]] = ..., version_held: _Optional[_Union[VersionHeld, _Mapping]] = ..., lease_return: _Optional[_Union[LeaseReturn, _Mapping]] = ..., accusation: _Optional[_Union[Accusation, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., certificate_request: _Optional[_Union[CertificateRequest, _Mapping]] = ..., partial_rollout: _Optional[_Union[PartialRollout, _Mapping]] = ..., reachability: _Optional[_Union[Reachability, _Mapping]] = ..., punch_request: _Optional[_Union[PunchRequest, _Mapping]] = ..., punch_outcome: _Optional[_Union[PunchOutcome, _Mapping]] = ..., dial_back_outcome: _Optional[_Union[DialBackOutcome, _Mapping]] = ..., peer_records: _Optional[_Union[PeerRecords, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "run_id", "learner_public_key", "heartbeat_interval_s", "heartbeat_timeout_s", "software", "prompt_tokens_max", "sampling", "prefetch_batches", "at_version_swap", "partial_interval_s", "tokenizer_json", "router_replay", "answer_s", "redial_spread_s")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LEARNER_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_MAX_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_BATCHES_FIELD_NUMBER: _ClassVar[int]
    AT_VERSION_SWAP_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_JSON_FIELD_NUMBER: _ClassVar[int]
    ROUTER_REPLAY_FIELD_NUMBER: _ClassVar[int]
    ANSWER_S_FIELD_NUMBER: _ClassVar[int]
    REDIAL_SPREAD_S_FIELD_NUMBER: _ClassVar[int]
    protocol: ProtocolRange
    run_id: str
    learner_public_key: bytes
    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    software: str
    prompt_tokens_max: int
    sampling: Sampling
    prefetch_batches: float
    at_version_swap: str
    partial_interval_s: float
    tokenizer_json: str
    router_replay: bool
    answer_s: float
    redial_spread_s: float
    def __init__(self, protocol: _Optional[_Union[ProtocolRange, _Mapping]] = ..., run_id: _Optional[str] = ..., learner_public_key: _Optional[bytes] = ..., heartbeat_interval_s: _Optional[float] = ..., heartbeat_timeout_s: _Optional[float] = ..., software: _Optional[str] = ..., prompt_tokens_max: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., prefetch_batches: _Optional[float] = ..., at_version_swap: _Optional[str] = ..., partial_interval_s: _Optional[float] = ..., tokenizer_json: _Optional[str] = ..., router_replay: _Optional[bool] = ..., answer_s: _Optional[float] = ..., redial_spread_s: _Optional[float] = ...) -> None: ...

class HeartbeatAnswer(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class TokenizerRequest(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    def __init__(self, sha256: _Optional[str] = ...) -> None: ...

class TokenizerPart(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class PlanNeighbour(_message.Message):
    __slots__ = ("peer_id", "role", "address", "we_dial", "lan")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WE_DIAL_FIELD_NUMBER: _ClassVar[int]
    LAN_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    role: str
    address: str
    we_dial: bool
    lan: bool
    def __init__(self, peer_id: _Optional[str] = ..., role: _Optional[str] = ..., address: _Optional[str] = ..., we_dial: _Optional[bool] = ..., lan: _Optional[bool] = ...) -> None: ...

class PlanStripe(_message.Message):
    __slots__ = ("stripe", "children", "bytes_per_second", "heirs", "adopted", "guardian", "relays")
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    HEIRS_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    GUARDIAN_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    stripe: int
    children: _containers.RepeatedScalarFieldContainer[int]
    bytes_per_second: float
    heirs: _containers.RepeatedCompositeFieldContainer[PlanHeir]
    adopted: _containers.RepeatedScalarFieldContainer[int]
    guardian: int
    relays: int
    def __init__(self, stripe: _Optional[int] = ..., children: _Optional[_Iterable[int]] = ..., bytes_per_second: _Optional[float] = ..., heirs: _Optional[_Iterable[_Union[PlanHeir, _Mapping]]] = ..., adopted: _Optional[_Iterable[int]] = ..., guardian: _Optional[int] = ..., relays: _Optional[int] = ...) -> None: ...

class PlanHeir(_message.Message):
    __slots__ = ("child", "heir")
    CHILD_FIELD_NUMBER: _ClassVar[int]
    HEIR_FIELD_NUMBER: _ClassVar[int]
    child: int
    heir: int
    def __init__(self, child: _Optional[int] = ..., heir: _Optional[int] = ...) -> None: ...

class RelayPlan(_message.Message):
    __slots__ = ("plan_id", "neighbours", "stripes", "list_children", "parents", "fallbacks", "direct_copies")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    STRIPES_FIELD_NUMBER: _ClassVar[int]
    LIST_CHILDREN_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    DIRECT_COPIES_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    neighbours: _containers.RepeatedCompositeFieldContainer[PlanNeighbour]
    stripes: _containers.RepeatedCompositeFieldContainer[PlanStripe]
    list_children: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    fallbacks: _containers.RepeatedCompositeFieldContainer[PlanNeighbour]
    direct_copies: bool
    def __init__(self, plan_id: _Optional[int] = ..., neighbours: _Optional[_Iterable[_Union[PlanNeighbour, _Mapping]]] = ..., stripes: _Optional[_Iterable[_Union[PlanStripe, _Mapping]]] = ..., list_children: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., fallbacks: _Optional[_Iterable[_Union[PlanNeighbour, _Mapping]]] = ..., direct_copies: _Optional[bool] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("probe_id", "peer_id", "bytes_max", "seconds_max")
    PROBE_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SECONDS_MAX_FIELD_NUMBER: _ClassVar[int]
    probe_id: int
    peer_id: str
    bytes_max: int
    seconds_max: float
    def __init__(self, probe_id: _Optional[int] = ..., peer_id: _Optional[str] = ..., bytes_max: _Optional[int] = ..., seconds_max: _Optional[float] = ...) -> None: ...

class Activation(_message.Message):
    __slots__ = ("active", "reason")
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    active: bool
    reason: str
    def __init__(self, active: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class Leases(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class LeaseRevoke(_message.Message):
    __slots__ = ("lease_ids", "reason")
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("certificate_pem",)
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    certificate_pem: bytes
    def __init__(self, certificate_pem: _Optional[bytes] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("code", "what", "fix")
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    code: str
    what: str
    fix: str
    def __init__(self, code: _Optional[str] = ..., what: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("welcome", "leases", "relay_plan", "announcement", "lease_revoke", "stop", "certificate", "refused", "probe", "activation", "punch", "dial_back", "dial_verdict", "circuit_relays", "peer_records", "banned", "audit_verdict", "heartbeat_answer")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    RELAY_PLAN_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCEMENT_FIELD_NUMBER: _ClassVar[int]
    LEASE_REVOKE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    PUNCH_FIELD_NUMBER: _ClassVar[int]
    DIAL_BACK_FIELD_NUMBER: _ClassVar[int]
    DIAL_VERDICT_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_RELAYS_FIELD_NUMBER: _ClassVar[int]
    PEER_RECORDS_FIELD_NUMBER: _ClassVar[int]
    BANNED_FIELD_NUMBER: _ClassVar[int]
    AUDIT_VERDICT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ANSWER_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    leases: Leases
    relay_plan: RelayPlan
    announcement: VersionAnnouncement
    lease_revoke: LeaseRevoke
    stop: Stop
    certificate: Certificate
    refused: Refused
    probe: Probe
    activation: Activation
    punch: Punch
    dial_back: DialBack
    dial_verdict: DialVerdict
    circuit_relays: CircuitRelays
    peer_records: PeerRecords
    banned: Banned
    audit_verdict: AuditVerdict
    heartbeat_answer: HeartbeatAnswer
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., leases: _Optional[_Union[Leases, _Mapping]] = ..., relay_plan: _Optional[_Union[RelayPlan, _Mapping]] = ..., announcement: _Optional[_Union[VersionAnnouncement, _Mapping]] = ..., lease_revoke: _Optional[_Union[LeaseRevoke, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., certificate: _Optional[_Union[Certificate, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ..., activation: _Optional[_Union[Activation, _Mapping]] = ..., punch: _Optional[_Union[Punch, _Mapping]] = ..., dial_back: _Optional[_Union[DialBack, _Mapping]] = ..., dial_verdict: _Optional[_Union[DialVerdict, _Mapping]] = ..., circuit_relays: _Optional[_Union[CircuitRelays, _Mapping]] = ..., peer_records: _Optional[_Union[PeerRecords, _Mapping]] = ..., banned: _Optional[_Union[Banned, _Mapping]] = ..., audit_verdict: _Optional[_Union[AuditVerdict, _Mapping]] = ..., heartbeat_answer: _Optional[_Union[HeartbeatAnswer, _Mapping]] = ...) -> None: ...

class AuditVerdict(_message.Message):
    __slots__ = ("state", "reason", "rollout_id", "token_at", "margin_nats", "bound_nats", "sampler", "rollouts", "left_out", "peer_id")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_AT_FIELD_NUMBER: _ClassVar[int]
    MARGIN_NATS_FIELD_NUMBER: _ClassVar[int]
    BOUND_NATS_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    state: str
    reason: str
    rollout_id: int
    token_at: int
    margin_nats: float
    bound_nats: float
    sampler: str
    rollouts: int
    left_out: int
    peer_id: str
    def __init__(self, state: _Optional[str] = ..., reason: _Optional[str] = ..., rollout_id: _Optional[int] = ..., token_at: _Optional[int] = ..., margin_nats: _Optional[float] = ..., bound_nats: _Optional[float] = ..., sampler: _Optional[str] = ..., rollouts: _Optional[int] = ..., left_out: _Optional[int] = ..., peer_id: _Optional[str] = ...) -> None: ...

class LearnerHello(_message.Message):
    __slots__ = ("protocol", "software", "learner_public_key")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    LEARNER_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    protocol: ProtocolRange
    software: str
    learner_public_key: bytes
    def __init__(self, protocol: _Optional[_Union[ProtocolRange, _Mapping]] = ..., software: _Optional[str] = ..., learner_public_key: _Optional[bytes] = ...) -> None: ...

class RunInfo(_message.Message):
    __slots__ = ("protocol", "run_id", "epoch", "steps", "staleness_limit", "publish_every_steps", "groups_per_step", "samples_per_group", "prompt_tokens_max", "sampling", "tokenizer_json", "recorded_batches", "has_published", "newest_published_version", "origin_address", "origin_peer_id", "newest_announcement", "epochs", "evaluation_sets", "router_replay", "at_version_swap", "has_flawed_teacher")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_GROUP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_MAX_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_JSON_FIELD_NUMBER: _ClassVar[int]
    RECORDED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    HAS_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    NEWEST_PUBLISHED_VERSION_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_PEER_ID_FIELD_NUMBER: _ClassVar[int]
    NEWEST_ANNOUNCEMENT_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_SETS_FIELD_NUMBER: _ClassVar[int]
    ROUTER_REPLAY_FIELD_NUMBER: _ClassVar[int]
    AT_VERSION_SWAP_FIELD_NUMBER: _ClassVar[int]
    HAS_FLAWED_TEACHER_FIELD_NUMBER: _ClassVar[int]
    protocol: ProtocolRange
    run_id: str
    epoch: int
    steps: int
    staleness_limit: int
    publish_every_steps: int
    groups_per_step: int
    samples_per_group: int
    prompt_tokens_max: int
    sampling: Sampling
    tokenizer_json: str
    recorded_batches: int
    has_published: bool
    newest_published_version: int
    origin_address: str
    origin_peer_id: str
    newest_announcement: VersionAnnouncement
    epochs: _containers.RepeatedCompositeFieldContainer[EpochStart]
    evaluation_sets: _containers.RepeatedScalarFieldContainer[str]
    router_replay: bool
    at_version_swap: str
    has_flawed_teacher: bool
    def __init__(self, protocol: _Optional[_Union[ProtocolRange, _Mapping]] = ..., run_id: _Optional[str] = ..., epoch: _Optional[int] = ..., steps: _Optional[int] = ..., staleness_limit: _Optional[int] = ..., publish_every_steps: _Optional[int] = ..., groups_per_step: _Optional[int] = ..., samples_per_group: _Optional[int] = ..., prompt_tokens_max: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., tokenizer_json: _Optional[str] = ..., recorded_batches: _Optional[int] = ..., has_published: _Optional[bool] = ..., newest_published_version: _Optional[int] = ..., origin_address: _Optional[str] = ..., origin_peer_id: _Optional[str] = ..., newest_announcement: _Optional[_Union[VersionAnnouncement, _Mapping]] = ..., epochs: _Optional[_Iterable[_Union[EpochStart, _Mapping]]] = ..., evaluation_sets: _Optional[_Iterable[str]] = ..., router_replay: _Optional[bool] = ..., at_version_swap: _Optional[str] = ..., has_flawed_teacher: _Optional[bool] = ...) -> None: ...

class EpochStart(_message.Message):
    __slots__ = ("epoch", "step_from", "step")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FROM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step_from: int
    step: int
    def __init__(self, epoch: _Optional[int] = ..., step_from: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class ExamplesRequest(_message.Message):
    __slots__ = ("count", "flawed", "cursor")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FLAWED_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    count: int
    flawed: bool
    cursor: int
    def __init__(self, count: _Optional[int] = ..., flawed: _Optional[bool] = ..., cursor: _Optional[int] = ...) -> None: ...

class HeldOutRequest(_message.Message):
    __slots__ = ("count", "set")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    count: int
    set: str
    def __init__(self, count: _Optional[int] = ..., set: _Optional[str] = ...) -> None: ...

class Example(_message.Message):
    __slots__ = ("example_id", "prompt_token_ids", "answer_token_ids", "has_environment")
    EXAMPLE_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HAS_ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    example_id: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    answer_token_ids: _containers.RepeatedScalarFieldContainer[int]
    has_environment: bool
    def __init__(self, example_id: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., answer_token_ids: _Optional[_Iterable[int]] = ..., has_environment: _Optional[bool] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("example_id", "token_ids", "sample_index", "keep", "version", "turn_lengths")
    EXAMPLE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TURN_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    example_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sample_index: int
    keep: bool
    version: int
    turn_lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, example_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., sample_index: _Optional[int] = ..., keep: _Optional[bool] = ..., version: _Optional[int] = ..., turn_lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class CompletionScore(_message.Message):
    __slots__ = ("example_id", "reward", "exact", "goes_on", "answer_token_ids", "answered_by_tools", "token_count")
    EXAMPLE_ID_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    GOES_ON_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_BY_TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    example_id: int
    reward: float
    exact: bool
    goes_on: bool
    answer_token_ids: _containers.RepeatedScalarFieldContainer[int]
    answered_by_tools: bool
    token_count: int
    def __init__(self, example_id: _Optional[int] = ..., reward: _Optional[float] = ..., exact: _Optional[bool] = ..., goes_on: _Optional[bool] = ..., answer_token_ids: _Optional[_Iterable[int]] = ..., answered_by_tools: _Optional[bool] = ..., token_count: _Optional[int] = ...) -> None: ...

class EvaluationRequest(_message.Message):
    __slots__ = ("set", "version", "problems", "samples", "seed", "deadline_s")
    SET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    set: str
    version: int
    problems: int
    samples: int
    seed: int
    deadline_s: float
    def __init__(self, set: _Optional[str] = ..., version: _Optional[int] = ..., problems: _Optional[int] = ..., samples: _Optional[int] = ..., seed: _Optional[int] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class EvaluationReply(_message.Message):
    __slots__ = ("ended", "given_up", "scored", "scores")
    ENDED_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    ended: bool
    given_up: str
    scored: int
    scores: _containers.RepeatedCompositeFieldContainer[ProblemScore]
    def __init__(self, ended: _Optional[bool] = ..., given_up: _Optional[str] = ..., scored: _Optional[int] = ..., scores: _Optional[_Iterable[_Union[ProblemScore, _Mapping]]] = ...) -> None: ...

class ProblemScore(_message.Message):
    __slots__ = ("exact", "reward")
    EXACT_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    exact: int
    reward: float
    def __init__(self, exact: _Optional[int] = ..., reward: _Optional[float] = ...) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("step", "wait_s")
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    step: int
    wait_s: float
    def __init__(self, step: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class TrainingRollout(_message.Message):
    __slots__ = ("rollout_id", "group_id", "sample_index", "prompt_token_ids", "segments", "sampling", "reward", "finish_reason", "seed", "agents")
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    rollout_id: int
    group_id: int
    sample_index: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    sampling: Sampling
    reward: float
    finish_reason: FinishReason
    seed: int
    agents: int
    def __init__(self, rollout_id: _Optional[int] = ..., group_id: _Optional[int] = ..., sample_index: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., reward: _Optional[float] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., seed: _Optional[int] = ..., agents: _Optional[int] = ...) -> None: ...

class BatchPart(_message.Message):
    __slots__ = ("header", "rollouts", "unseen")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    header: BatchHeader
    rollouts: _containers.RepeatedCompositeFieldContainer[TrainingRollout]
    unseen: _containers.RepeatedCompositeFieldContainer[TrainingRollout]
    def __init__(self, header: _Optional[_Union[BatchHeader, _Mapping]] = ..., rollouts: _Optional[_Iterable[_Union[TrainingRollout, _Mapping]]] = ..., unseen: _Optional[_Iterable[_Union[TrainingRollout, _Mapping]]] = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("step", "ready", "waiting_for", "rollout_count", "replayed", "publish_every_steps", "unseen_count", "staleness_limit", "paused", "final")
    STEP_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    STALENESS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    step: int
    ready: bool
    waiting_for: str
    rollout_count: int
    replayed: bool
    publish_every_steps: int
    unseen_count: int
    staleness_limit: int
    paused: bool
    final: bool
    def __init__(self, step: _Optional[int] = ..., ready: _Optional[bool] = ..., waiting_for: _Optional[str] = ..., rollout_count: _Optional[int] = ..., replayed: _Optional[bool] = ..., publish_every_steps: _Optional[int] = ..., unseen_count: _Optional[int] = ..., staleness_limit: _Optional[int] = ..., paused: _Optional[bool] = ..., final: _Optional[bool] = ...) -> None: ...

class AnnounceReply(_message.Message):
    __slots__ = ("first_time",)
    FIRST_TIME_FIELD_NUMBER: _ClassVar[int]
    first_time: bool
    def __init__(self, first_time: _Optional[bool] = ...) -> None: ...

class EpochRequest(_message.Message):
    __slots__ = ("step", "has_common_version", "common_version")
    STEP_FIELD_NUMBER: _ClassVar[int]
    HAS_COMMON_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMON_VERSION_FIELD_NUMBER: _ClassVar[int]
    step: int
    has_common_version: bool
    common_version: int
    def __init__(self, step: _Optional[int] = ..., has_common_version: _Optional[bool] = ..., common_version: _Optional[int] = ...) -> None: ...

class EpochReply(_message.Message):
    __slots__ = ("epoch", "step")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class StepReport(_message.Message):
    __slots__ = ("step", "values", "audits")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    AUDITS_FIELD_NUMBER: _ClassVar[int]
    step: int
    values: _containers.ScalarMap[str, float]
    audits: _containers.RepeatedCompositeFieldContainer[RolloutAudit]
    def __init__(self, step: _Optional[int] = ..., values: _Optional[_Mapping[str, float]] = ..., audits: _Optional[_Iterable[_Union[RolloutAudit, _Mapping]]] = ...) -> None: ...

class RolloutAudit(_message.Message):
    __slots__ = ("rollout_id", "peer_id", "tokens", "beyond", "far", "worst_nats", "bound_nats", "worst_at", "sampler", "trained")
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    FAR_FIELD_NUMBER: _ClassVar[int]
    WORST_NATS_FIELD_NUMBER: _ClassVar[int]
    BOUND_NATS_FIELD_NUMBER: _ClassVar[int]
    WORST_AT_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    rollout_id: int
    peer_id: str
    tokens: int
    beyond: int
    far: int
    worst_nats: float
    bound_nats: float
    worst_at: int
    sampler: str
    trained: bool
    def __init__(self, rollout_id: _Optional[int] = ..., peer_id: _Optional[str] = ..., tokens: _Optional[int] = ..., beyond: _Optional[int] = ..., far: _Optional[int] = ..., worst_nats: _Optional[float] = ..., bound_nats: _Optional[float] = ..., worst_at: _Optional[int] = ..., sampler: _Optional[str] = ..., trained: _Optional[bool] = ...) -> None: ...

class LearnerStatus(_message.Message):
    __slots__ = ("phase", "detail", "values", "profile")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    phase: str
    detail: str
    values: _containers.ScalarMap[str, float]
    profile: ProfileReport
    def __init__(self, phase: _Optional[str] = ..., detail: _Optional[str] = ..., values: _Optional[_Mapping[str, float]] = ..., profile: _Optional[_Union[ProfileReport, _Mapping]] = ...) -> None: ...

class ProfileOrder(_message.Message):
    __slots__ = ("profile_id", "steps", "python_tracer")
    PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PYTHON_TRACER_FIELD_NUMBER: _ClassVar[int]
    profile_id: str
    steps: int
    python_tracer: bool
    def __init__(self, profile_id: _Optional[str] = ..., steps: _Optional[int] = ..., python_tracer: _Optional[bool] = ...) -> None: ...

class ProfileReport(_message.Message):
    __slots__ = ("profile_id", "begun", "first_step", "steps_done", "ended", "folder", "size_bytes", "failure")
    PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    profile_id: str
    begun: bool
    first_step: int
    steps_done: int
    ended: bool
    folder: str
    size_bytes: int
    failure: str
    def __init__(self, profile_id: _Optional[str] = ..., begun: _Optional[bool] = ..., first_step: _Optional[int] = ..., steps_done: _Optional[int] = ..., ended: _Optional[bool] = ..., folder: _Optional[str] = ..., size_bytes: _Optional[int] = ..., failure: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("profile",)
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    profile: ProfileOrder
    def __init__(self, profile: _Optional[_Union[ProfileOrder, _Mapping]] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CellReport(_message.Message):
    __slots__ = ("leases", "over", "convicted", "rollouts_max", "wait_s")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    CONVICTED_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_MAX_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    over: _containers.RepeatedCompositeFieldContainer[SlotOver]
    convicted: _containers.RepeatedCompositeFieldContainer[ConvictedMember]
    rollouts_max: int
    wait_s: float
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., over: _Optional[_Iterable[_Union[SlotOver, _Mapping]]] = ..., convicted: _Optional[_Iterable[_Union[ConvictedMember, _Mapping]]] = ..., rollouts_max: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class SlotOver(_message.Message):
    __slots__ = ("lease_id", "sample_index", "reason", "whole_lease")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WHOLE_LEASE_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    sample_index: int
    reason: str
    whole_lease: bool
    def __init__(self, lease_id: _Optional[int] = ..., sample_index: _Optional[int] = ..., reason: _Optional[str] = ..., whole_lease: _Optional[bool] = ...) -> None: ...

class ConvictedMember(_message.Message):
    __slots__ = ("peer_id", "reason")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    reason: str
    def __init__(self, peer_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CellAnswer(_message.Message):
    __slots__ = ("workers", "slots", "slots_wanted", "has_version", "version", "epoch", "leases", "rollouts", "tokens_generated", "tokens_per_second", "slots_lent")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_WANTED_FIELD_NUMBER: _ClassVar[int]
    HAS_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SLOTS_LENT_FIELD_NUMBER: _ClassVar[int]
    workers: int
    slots: int
    slots_wanted: int
    has_version: bool
    version: int
    epoch: int
    leases: _containers.RepeatedScalarFieldContainer[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[Rollout]
    tokens_generated: int
    tokens_per_second: float
    slots_lent: int
    def __init__(self, workers: _Optional[int] = ..., slots: _Optional[int] = ..., slots_wanted: _Optional[int] = ..., has_version: _Optional[bool] = ..., version: _Optional[int] = ..., epoch: _Optional[int] = ..., leases: _Optional[_Iterable[int]] = ..., rollouts: _Optional[_Iterable[_Union[Rollout, _Mapping]]] = ..., tokens_generated: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., slots_lent: _Optional[int] = ...) -> None: ...

class LinkHello(_message.Message):
    __slots__ = ("protocol", "run_id", "software", "certificate_der")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_DER_FIELD_NUMBER: _ClassVar[int]
    protocol: ProtocolRange
    run_id: str
    software: str
    certificate_der: bytes
    def __init__(self, protocol: _Optional[_Union[ProtocolRange, _Mapping]] = ..., run_id: _Optional[str] = ..., software: _Optional[str] = ..., certificate_der: _Optional[bytes] = ...) -> None: ...

class Have(_message.Message):
    __slots__ = ("version", "encoding_id", "chunk_count", "bitmap", "complete")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    BITMAP_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    version: int
    encoding_id: int
    chunk_count: int
    bitmap: bytes
    complete: bool
    def __init__(self, version: _Optional[int] = ..., encoding_id: _Optional[int] = ..., chunk_count: _Optional[int] = ..., bitmap: _Optional[bytes] = ..., complete: _Optional[bool] = ...) -> None: ...

class ChunkList(_message.Message):
    __slots__ = ("version", "encoding_id", "hashes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    version: int
    encoding_id: int
    hashes: bytes
    def __init__(self, version: _Optional[int] = ..., encoding_id: _Optional[int] = ..., hashes: _Optional[bytes] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("version", "encoding_id", "indices")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    version: int
    encoding_id: int
    indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., encoding_id: _Optional[int] = ..., indices: _Optional[_Iterable[int]] = ...) -> None: ...

class Got(_message.Message):
    __slots__ = ("version", "encoding_id", "indices")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    version: int
    encoding_id: int
    indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., encoding_id: _Optional[int] = ..., indices: _Optional[_Iterable[int]] = ...) -> None: ...

class Decline(_message.Message):
    __slots__ = ("version", "encoding_id", "indices")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    version: int
    encoding_id: int
    indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., encoding_id: _Optional[int] = ..., indices: _Optional[_Iterable[int]] = ...) -> None: ...

class Want(_message.Message):
    __slots__ = ("version", "encoding_id", "chunk_list", "announcement")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_LIST_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCEMENT_FIELD_NUMBER: _ClassVar[int]
    version: int
    encoding_id: int
    chunk_list: bool
    announcement: bool
    def __init__(self, version: _Optional[int] = ..., encoding_id: _Optional[int] = ..., chunk_list: _Optional[bool] = ..., announcement: _Optional[bool] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("version", "encoding_id", "indices")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    version: int
    encoding_id: int
    indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., encoding_id: _Optional[int] = ..., indices: _Optional[_Iterable[int]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("version", "encoding_id", "reason")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    version: int
    encoding_id: int
    reason: str
    def __init__(self, version: _Optional[int] = ..., encoding_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ReceiptRequest(_message.Message):
    __slots__ = ("version", "encoding_id", "chunk_index", "nonce")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INDEX_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    version: int
    encoding_id: int
    chunk_index: int
    nonce: bytes
    def __init__(self, version: _Optional[int] = ..., encoding_id: _Optional[int] = ..., chunk_index: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class ChunkReceipt(_message.Message):
    __slots__ = ("run_id", "version", "encoding_id", "chunk_index", "chunk_hash", "chunk_list_hash", "receiver_peer_id", "nonce")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INDEX_FIELD_NUMBER: _ClassVar[int]
    CHUNK_HASH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_LIST_HASH_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_PEER_ID_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    version: int
    encoding_id: int
    chunk_index: int
    chunk_hash: bytes
    chunk_list_hash: bytes
    receiver_peer_id: str
    nonce: bytes
    def __init__(self, run_id: _Optional[str] = ..., version: _Optional[int] = ..., encoding_id: _Optional[int] = ..., chunk_index: _Optional[int] = ..., chunk_hash: _Optional[bytes] = ..., chunk_list_hash: _Optional[bytes] = ..., receiver_peer_id: _Optional[str] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Padding(_message.Message):
    __slots__ = ("zeros",)
    ZEROS_FIELD_NUMBER: _ClassVar[int]
    zeros: bytes
    def __init__(self, zeros: _Optional[bytes] = ...) -> None: ...

class LinkError(_message.Message):
    __slots__ = ("code", "what")
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    code: str
    what: str
    def __init__(self, code: _Optional[str] = ..., what: _Optional[str] = ...) -> None: ...

class LinkMessage(_message.Message):
    __slots__ = ("hello", "have", "chunk_list", "credit", "want", "cancel", "error", "announcement", "held", "request", "padding", "peer_records", "receipt_request", "receipt", "got", "decline")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_LIST_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCEMENT_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    PEER_RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    GOT_FIELD_NUMBER: _ClassVar[int]
    DECLINE_FIELD_NUMBER: _ClassVar[int]
    hello: LinkHello
    have: Have
    chunk_list: ChunkList
    credit: Credit
    want: Want
    cancel: Cancel
    error: LinkError
    announcement: VersionAnnouncement
    held: VersionHeld
    request: Request
    padding: Padding
    peer_records: PeerRecords
    receipt_request: ReceiptRequest
    receipt: Signed
    got: Got
    decline: Decline
    def __init__(self, hello: _Optional[_Union[LinkHello, _Mapping]] = ..., have: _Optional[_Union[Have, _Mapping]] = ..., chunk_list: _Optional[_Union[ChunkList, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., want: _Optional[_Union[Want, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., error: _Optional[_Union[LinkError, _Mapping]] = ..., announcement: _Optional[_Union[VersionAnnouncement, _Mapping]] = ..., held: _Optional[_Union[VersionHeld, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., padding: _Optional[_Union[Padding, _Mapping]] = ..., peer_records: _Optional[_Union[PeerRecords, _Mapping]] = ..., receipt_request: _Optional[_Union[ReceiptRequest, _Mapping]] = ..., receipt: _Optional[_Union[Signed, _Mapping]] = ..., got: _Optional[_Union[Got, _Mapping]] = ..., decline: _Optional[_Union[Decline, _Mapping]] = ...) -> None: ...
