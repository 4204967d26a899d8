//! Auditing: which requests at which level (`policy`), the events (`event`), the recorded bodies (`bodies`, `response`), and the
//! source addresses (`sources`).

pub mod bodies;
pub mod event;
pub mod policy;
pub mod response;
pub mod sources;

/// The apiVersion of audit events and policies.
pub const API_VERSION: &str = "audit.k8s.io/v1";

/// The audit level of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Not audited.
    #[default]
    None,
    /// Metadata of the request.
    Metadata,
    /// Metadata and the request body.
    Request,
    /// Metadata and both bodies.
    RequestResponse,
}

impl Level {
    /// All levels, in the order in which messages name them.
    pub const ALL: [Level; 4] = [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    /// The name in policies and events.
    pub fn word(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// The stage of a request at which an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// As soon as the request is received.
    RequestReceived,
    /// When the response begins, for long-running requests.
    ResponseStarted,
    /// After the response is complete.
    ResponseComplete,
    /// After a panic.
    Panic,
}

impl Stage {
    /// All stages, in the order in which messages name them.
    pub const ALL: [Stage; 4] =
        [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];

    /// The name in policies and events.
    pub fn word(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages(u8);

impl Stages {
    /// The set with one more stage.
    pub fn with(self, stage: Stage) -> Stages {
        Stages(self.0 | 1 << stage as u8)
    }

    /// The union of both sets.
    pub fn union(self, others: Stages) -> Stages {
        Stages(self.0 | others.0)
    }

    /// Whether the set contains a stage.
    pub fn contains(self, stage: Stage) -> bool {
        self.0 & 1 << stage as u8 != 0
    }
}
