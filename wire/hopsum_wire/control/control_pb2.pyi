# SPDX-License-Identifier: Apache-2.0
# By tools/generate_rpc.py (grpcio-tools 1.62.3) from control.proto, sha256 4e23ab19b30599111627bed9437c4985
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_FORMING: _ClassVar[JobState]
    JOB_STATE_INSTALLING: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_CHANGING: _ClassVar[JobState]
    JOB_STATE_ENDING: _ClassVar[JobState]

class JobHealth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_HEALTH_UNSPECIFIED: _ClassVar[JobHealth]
    JOB_HEALTH_HEALTHY: _ClassVar[JobHealth]
    JOB_HEALTH_IDLE: _ClassVar[JobHealth]
    JOB_HEALTH_WAITING: _ClassVar[JobHealth]
    JOB_HEALTH_DEGRADED: _ClassVar[JobHealth]
    JOB_HEALTH_STALLED: _ClassVar[JobHealth]
    JOB_HEALTH_FAILED: _ClassVar[JobHealth]

class MemberPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_PHASE_UNSPECIFIED: _ClassVar[MemberPhase]
    MEMBER_PHASE_WAITING: _ClassVar[MemberPhase]
    MEMBER_PHASE_IN: _ClassVar[MemberPhase]
    MEMBER_PHASE_OVER: _ClassVar[MemberPhase]
    MEMBER_PHASE_LEFT: _ClassVar[MemberPhase]
    MEMBER_PHASE_LOST: _ClassVar[MemberPhase]
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_FORMING: JobState
JOB_STATE_INSTALLING: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_CHANGING: JobState
JOB_STATE_ENDING: JobState
JOB_HEALTH_UNSPECIFIED: JobHealth
JOB_HEALTH_HEALTHY: JobHealth
JOB_HEALTH_IDLE: JobHealth
JOB_HEALTH_WAITING: JobHealth
JOB_HEALTH_DEGRADED: JobHealth
JOB_HEALTH_STALLED: JobHealth
JOB_HEALTH_FAILED: JobHealth
MEMBER_PHASE_UNSPECIFIED: MemberPhase
MEMBER_PHASE_WAITING: MemberPhase
MEMBER_PHASE_IN: MemberPhase
MEMBER_PHASE_OVER: MemberPhase
MEMBER_PHASE_LEFT: MemberPhase
MEMBER_PHASE_LOST: MemberPhase

class RotateJobTokenRequest(_message.Message):
    __slots__ = ("name", "revoke_earlier", "token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVOKE_EARLIER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    revoke_earlier: bool
    token: str
    def __init__(self, name: _Optional[str] = ..., revoke_earlier: bool = ..., token: _Optional[str] = ...) -> None: ...

class RotateJobTokenResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BackupPart(_message.Message):
    __slots__ = ("content", "total_bytes")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    total_bytes: int
    def __init__(self, content: _Optional[bytes] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("ip", "udp_port")
    IP_FIELD_NUMBER: _ClassVar[int]
    UDP_PORT_FIELD_NUMBER: _ClassVar[int]
    ip: str
    udp_port: int
    def __init__(self, ip: _Optional[str] = ..., udp_port: _Optional[int] = ...) -> None: ...

class LocateRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class LocateResponse(_message.Message):
    __slots__ = ("send_to", "workers", "leaves", "codec", "codec_options", "further")
    class Leaf(_message.Message):
        __slots__ = ("send_to", "networks")
        SEND_TO_FIELD_NUMBER: _ClassVar[int]
        NETWORKS_FIELD_NUMBER: _ClassVar[int]
        send_to: Endpoint
        networks: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, send_to: _Optional[_Union[Endpoint, _Mapping]] = ..., networks: _Optional[_Iterable[str]] = ...) -> None: ...
    SEND_TO_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CODEC_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    send_to: Endpoint
    workers: int
    leaves: _containers.RepeatedCompositeFieldContainer[LocateResponse.Leaf]
    codec: str
    codec_options: str
    further: _containers.RepeatedCompositeFieldContainer[Endpoint]
    def __init__(self, send_to: _Optional[_Union[Endpoint, _Mapping]] = ..., workers: _Optional[int] = ..., leaves: _Optional[_Iterable[_Union[LocateResponse.Leaf, _Mapping]]] = ..., codec: _Optional[str] = ..., codec_options: _Optional[str] = ..., further: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("job", "rank", "endpoint", "mac", "side_port", "incarnation", "wire_version", "version", "report", "settings", "further")
    class Shard(_message.Message):
        __slots__ = ("endpoint", "mac", "side_port")
        ENDPOINT_FIELD_NUMBER: _ClassVar[int]
        MAC_FIELD_NUMBER: _ClassVar[int]
        SIDE_PORT_FIELD_NUMBER: _ClassVar[int]
        endpoint: Endpoint
        mac: str
        side_port: int
        def __init__(self, endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., mac: _Optional[str] = ..., side_port: _Optional[int] = ...) -> None: ...
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    SIDE_PORT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    endpoint: Endpoint
    mac: str
    side_port: int
    incarnation: bytes
    wire_version: int
    version: str
    report: Report
    settings: _containers.ScalarMap[str, str]
    further: _containers.RepeatedCompositeFieldContainer[JoinRequest.Shard]
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., mac: _Optional[str] = ..., side_port: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., wire_version: _Optional[int] = ..., version: _Optional[str] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., settings: _Optional[_Mapping[str, str]] = ..., further: _Optional[_Iterable[_Union[JoinRequest.Shard, _Mapping]]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("generation", "delivered_to", "submitted_to", "held", "allreduces_begun", "further")
    class Run(_message.Message):
        __slots__ = ("first", "end")
        FIRST_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        first: int
        end: int
        def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_TO_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_TO_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ALLREDUCES_BEGUN_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    generation: int
    delivered_to: int
    submitted_to: int
    held: _containers.RepeatedCompositeFieldContainer[Report.Run]
    allreduces_begun: int
    further: _containers.RepeatedCompositeFieldContainer[Report]
    def __init__(self, generation: _Optional[int] = ..., delivered_to: _Optional[int] = ..., submitted_to: _Optional[int] = ..., held: _Optional[_Iterable[_Union[Report.Run, _Mapping]]] = ..., allreduces_begun: _Optional[int] = ..., further: _Optional[_Iterable[_Union[Report, _Mapping]]] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("rank", "secret", "lease_s", "heartbeat_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    secret: bytes
    lease_s: float
    heartbeat_s: float
    def __init__(self, rank: _Optional[int] = ..., secret: _Optional[bytes] = ..., lease_s: _Optional[float] = ..., heartbeat_s: _Optional[float] = ...) -> None: ...

class AwaitMembershipRequest(_message.Message):
    __slots__ = ("job", "rank", "known_generation", "timeout_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    KNOWN_GENERATION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    known_generation: int
    timeout_s: float
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., known_generation: _Optional[int] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class AwaitMembershipResponse(_message.Message):
    __slots__ = ("membership", "pending")
    class Pending(_message.Message):
        __slots__ = ("missing_ranks", "again_s", "state", "condition", "gone_ranks", "reason")
        MISSING_RANKS_FIELD_NUMBER: _ClassVar[int]
        AGAIN_S_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        CONDITION_FIELD_NUMBER: _ClassVar[int]
        GONE_RANKS_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        missing_ranks: _containers.RepeatedScalarFieldContainer[int]
        again_s: float
        state: JobState
        condition: str
        gone_ranks: _containers.RepeatedScalarFieldContainer[int]
        reason: str
        def __init__(self, missing_ranks: _Optional[_Iterable[int]] = ..., again_s: _Optional[float] = ..., state: _Optional[_Union[JobState, str]] = ..., condition: _Optional[str] = ..., gone_ranks: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    membership: str
    pending: AwaitMembershipResponse.Pending
    def __init__(self, membership: _Optional[str] = ..., pending: _Optional[_Union[AwaitMembershipResponse.Pending, _Mapping]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("job", "rank", "generation", "statistics")
    class StatisticsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    generation: int
    statistics: _containers.ScalarMap[str, float]
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., generation: _Optional[int] = ..., statistics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("state", "generation", "reason", "lost_ranks", "switch_unreachable")
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOST_RANKS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    state: JobState
    generation: int
    reason: str
    lost_ranks: _containers.RepeatedScalarFieldContainer[int]
    switch_unreachable: str
    def __init__(self, state: _Optional[_Union[JobState, str]] = ..., generation: _Optional[int] = ..., reason: _Optional[str] = ..., lost_ranks: _Optional[_Iterable[int]] = ..., switch_unreachable: _Optional[str] = ...) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("job", "rank", "generation")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    generation: int
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("job", "rank", "unfinished", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    unfinished: bool
    reason: str
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., unfinished: bool = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateJobRequest(_message.Message):
    __slots__ = ("name", "workers", "slots", "table", "table16", "quorum", "min_quorum", "switch", "lease_s", "tree", "codec", "codec_options", "shards", "shard_switches", "token", "min_workers", "replace_s", "table4", "table3", "table2")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE16_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    MIN_QUORUM_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CODEC_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SHARD_SWITCHES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_S_FIELD_NUMBER: _ClassVar[int]
    TABLE4_FIELD_NUMBER: _ClassVar[int]
    TABLE3_FIELD_NUMBER: _ClassVar[int]
    TABLE2_FIELD_NUMBER: _ClassVar[int]
    name: str
    workers: int
    slots: int
    table: _containers.RepeatedScalarFieldContainer[int]
    table16: _containers.RepeatedScalarFieldContainer[int]
    quorum: int
    min_quorum: int
    switch: str
    lease_s: float
    tree: bool
    codec: str
    codec_options: str
    shards: int
    shard_switches: _containers.RepeatedScalarFieldContainer[str]
    token: str
    min_workers: int
    replace_s: float
    table4: _containers.RepeatedScalarFieldContainer[int]
    table3: _containers.RepeatedScalarFieldContainer[int]
    table2: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., workers: _Optional[int] = ..., slots: _Optional[int] = ..., table: _Optional[_Iterable[int]] = ..., table16: _Optional[_Iterable[int]] = ..., quorum: _Optional[int] = ..., min_quorum: _Optional[int] = ..., switch: _Optional[str] = ..., lease_s: _Optional[float] = ..., tree: bool = ..., codec: _Optional[str] = ..., codec_options: _Optional[str] = ..., shards: _Optional[int] = ..., shard_switches: _Optional[_Iterable[str]] = ..., token: _Optional[str] = ..., min_workers: _Optional[int] = ..., replace_s: _Optional[float] = ..., table4: _Optional[_Iterable[int]] = ..., table3: _Optional[_Iterable[int]] = ..., table2: _Optional[_Iterable[int]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("switch", "job_index", "slot_base", "slots", "counters")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    JOB_INDEX_FIELD_NUMBER: _ClassVar[int]
    SLOT_BASE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    switch: str
    job_index: int
    slot_base: int
    slots: int
    counters: _containers.ScalarMap[str, int]
    def __init__(self, switch: _Optional[str] = ..., job_index: _Optional[int] = ..., slot_base: _Optional[int] = ..., slots: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ...) -> None: ...

class CreateJobResponse(_message.Message):
    __slots__ = ("name", "token", "slot_base", "slots", "workers", "parts", "switches")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SLOT_BASE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    name: str
    token: str
    slot_base: int
    slots: int
    workers: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    switches: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., token: _Optional[str] = ..., slot_base: _Optional[int] = ..., slots: _Optional[int] = ..., workers: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., switches: _Optional[_Iterable[str]] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("name", "state", "reason", "condition", "generation", "job_index", "slot_base", "slots", "workers", "quorum", "min_quorum", "lease_s", "members", "missing_ranks", "counters", "generations_begun", "joins_refused", "last_refusal", "parts", "health", "health_reason", "last_refusal_age_s", "ended_age_s", "begun_age_s", "codec", "codec_options", "events", "switches", "shards", "tenant", "min_workers", "absent_ranks")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    JOB_INDEX_FIELD_NUMBER: _ClassVar[int]
    SLOT_BASE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    MIN_QUORUM_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MISSING_RANKS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_BEGUN_FIELD_NUMBER: _ClassVar[int]
    JOINS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    LAST_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_REFUSAL_AGE_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_AGE_S_FIELD_NUMBER: _ClassVar[int]
    BEGUN_AGE_S_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CODEC_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_RANKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: JobState
    reason: str
    condition: str
    generation: int
    job_index: int
    slot_base: int
    slots: int
    workers: int
    quorum: int
    min_quorum: int
    lease_s: float
    members: _containers.RepeatedCompositeFieldContainer[Member]
    missing_ranks: _containers.RepeatedScalarFieldContainer[int]
    counters: _containers.ScalarMap[str, int]
    generations_begun: int
    joins_refused: int
    last_refusal: str
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    health: JobHealth
    health_reason: str
    last_refusal_age_s: float
    ended_age_s: float
    begun_age_s: float
    codec: str
    codec_options: str
    events: _containers.RepeatedCompositeFieldContainer[JobEvent]
    switches: _containers.RepeatedScalarFieldContainer[str]
    shards: int
    tenant: str
    min_workers: int
    absent_ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., reason: _Optional[str] = ..., condition: _Optional[str] = ..., generation: _Optional[int] = ..., job_index: _Optional[int] = ..., slot_base: _Optional[int] = ..., slots: _Optional[int] = ..., workers: _Optional[int] = ..., quorum: _Optional[int] = ..., min_quorum: _Optional[int] = ..., lease_s: _Optional[float] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., missing_ranks: _Optional[_Iterable[int]] = ..., counters: _Optional[_Mapping[str, int]] = ..., generations_begun: _Optional[int] = ..., joins_refused: _Optional[int] = ..., last_refusal: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., health: _Optional[_Union[JobHealth, str]] = ..., health_reason: _Optional[str] = ..., last_refusal_age_s: _Optional[float] = ..., ended_age_s: _Optional[float] = ..., begun_age_s: _Optional[float] = ..., codec: _Optional[str] = ..., codec_options: _Optional[str] = ..., events: _Optional[_Iterable[_Union[JobEvent, _Mapping]]] = ..., switches: _Optional[_Iterable[str]] = ..., shards: _Optional[int] = ..., tenant: _Optional[str] = ..., min_workers: _Optional[int] = ..., absent_ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("type", "reason", "message", "count", "age_s")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    type: str
    reason: str
    message: str
    count: int
    age_s: float
    def __init__(self, type: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., count: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("rank", "phase", "endpoint", "side_port", "port", "version", "lease_left_s", "statistics", "heartbeat_age_s", "reason")
    class StatisticsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    SIDE_PORT_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_S_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rank: int
    phase: MemberPhase
    endpoint: Endpoint
    side_port: int
    port: int
    version: str
    lease_left_s: float
    statistics: _containers.ScalarMap[str, float]
    heartbeat_age_s: float
    reason: str
    def __init__(self, rank: _Optional[int] = ..., phase: _Optional[_Union[MemberPhase, str]] = ..., endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., side_port: _Optional[int] = ..., port: _Optional[int] = ..., version: _Optional[str] = ..., lease_left_s: _Optional[float] = ..., statistics: _Optional[_Mapping[str, float]] = ..., heartbeat_age_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class DeleteJobRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MoveJobRequest(_message.Message):
    __slots__ = ("name", "from_switch", "to_switch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FROM_SWITCH_FIELD_NUMBER: _ClassVar[int]
    TO_SWITCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    from_switch: str
    to_switch: str
    def __init__(self, name: _Optional[str] = ..., from_switch: _Optional[str] = ..., to_switch: _Optional[str] = ...) -> None: ...

class MoveJobResponse(_message.Message):
    __slots__ = ("from_switch", "to_switch", "slot_base", "slots")
    FROM_SWITCH_FIELD_NUMBER: _ClassVar[int]
    TO_SWITCH_FIELD_NUMBER: _ClassVar[int]
    SLOT_BASE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    from_switch: str
    to_switch: str
    slot_base: int
    slots: int
    def __init__(self, from_switch: _Optional[str] = ..., to_switch: _Optional[str] = ..., slot_base: _Optional[int] = ..., slots: _Optional[int] = ...) -> None: ...

class ListSwitchesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSwitchesResponse(_message.Message):
    __slots__ = ("switches", "notices")
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    switches: _containers.RepeatedCompositeFieldContainer[Switch]
    notices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, switches: _Optional[_Iterable[_Union[Switch, _Mapping]]] = ..., notices: _Optional[_Iterable[str]] = ...) -> None: ...

class Switch(_message.Message):
    __slots__ = ("name", "driver", "address", "reachable", "condition", "slots", "slots_used", "slots_largest_free", "jobs", "drops", "audits", "entries_repaired", "findings", "condition_reason", "sessions")
    class DropsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_LARGEST_FREE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    AUDITS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_REPAIRED_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    CONDITION_REASON_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    driver: str
    address: str
    reachable: bool
    condition: str
    slots: int
    slots_used: int
    slots_largest_free: int
    jobs: int
    drops: _containers.ScalarMap[str, int]
    audits: int
    entries_repaired: int
    findings: _containers.RepeatedScalarFieldContainer[str]
    condition_reason: str
    sessions: int
    def __init__(self, name: _Optional[str] = ..., driver: _Optional[str] = ..., address: _Optional[str] = ..., reachable: bool = ..., condition: _Optional[str] = ..., slots: _Optional[int] = ..., slots_used: _Optional[int] = ..., slots_largest_free: _Optional[int] = ..., jobs: _Optional[int] = ..., drops: _Optional[_Mapping[str, int]] = ..., audits: _Optional[int] = ..., entries_repaired: _Optional[int] = ..., findings: _Optional[_Iterable[str]] = ..., condition_reason: _Optional[str] = ..., sessions: _Optional[int] = ...) -> None: ...
