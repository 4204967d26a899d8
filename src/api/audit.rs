//! What is written down of requests: which of them and how much (`policy`), in which words (`event`), what is left of
//! bodies (`bodies`, `response`), and where requests come from (`sources`).

pub mod bodies;
pub mod event;
pub mod policy;
pub mod response;
pub mod sources;

/// The group and version of records and policies.
pub const API_VERSION: &str = "audit.k8s.io/v1";

/// How much is written down of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// Who asked for what, and what came of it.
    Metadata,
    /// And the body.
    Request,
    /// And the answer.
    RequestResponse,
}

impl Level {
    /// All of them, in the order in which messages name them.
    pub const ALL: [Level; 4] = [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    /// As policies and records say it.
    pub fn word(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// When something is written down of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before anything is done.
    RequestReceived,
    /// When the answer begins, of requests without an end of their own.
    ResponseStarted,
    /// When nothing more will be said.
    ResponseComplete,
    /// When the server broke on it.
    Panic,
}

impl Stage {
    /// All of them, in the order in which messages name them.
    pub const ALL: [Stage; 4] =
        [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];

    /// As policies and records say it.
    pub fn word(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// Some of the stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages(u8);

impl Stages {
    /// These and one more.
    pub fn with(self, stage: Stage) -> Stages {
        Stages(self.0 | 1 << stage as u8)
    }

    /// These and those.
    pub fn and(self, others: Stages) -> Stages {
        Stages(self.0 | others.0)
    }

    /// Whether this is one of them.
    pub fn contain(self, stage: Stage) -> bool {
        self.0 & 1 << stage as u8 != 0
    }
}
