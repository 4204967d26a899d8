//! The layers of the server, from the bottom up, and their allowed imports.

/// A module and the imports that it is allowed.
pub struct Layer {
    /// The module: a file, a folder, or both, below `src`.
    pub name: &'static str,
    /// The modules it may import. All of them precede it in the list, so there are no cycles.
    pub allowed: &'static [&'static str],
    /// Which of [`EXTERNAL`] it may use.
    pub external: &'static [&'static str],
}

/// Prefixes of paths to libraries whose use is restricted to listed layers.
pub const EXTERNAL: &[&str] = &[
    "actix::",
    "actix_http::",
    "actix_rt::",
    "actix_server::",
    "actix_service::",
    "actix_web::",
    "clap::",
    "fs::",
    "h2::",
    "openssl::",
    "pilothouse::",
    "pilothouse_actors::",
    "process::",
    "prometheus::",
    "redb::",
    "serde_json::",
    "TcpListener",
    "TcpStream",
    "tokio::",
    "UdpSocket",
];

/// Modules of `src`, from the ground up.
pub const LAYERS: &[Layer] = &[
    Layer { name: "limits", allowed: &[], external: &[] },
    Layer { name: "config", allowed: &["limits"], external: &["clap::", "fs::read", "openssl::"] },
    Layer {
        name: "telemetry",
        allowed: &["limits", "config"],
        external: &["fs::File", "pilothouse::", "pilothouse_actors::"],
    },
    Layer {
        name: "metrics",
        allowed: &["limits", "telemetry"],
        external: &[
            "fs::metadata",
            "fs::read_dir",
            "fs::read_to_string",
            "openssl::",
            "pilothouse_actors::",
            "prometheus::",
        ],
    },
    Layer {
        name: "encryption",
        allowed: &["limits"],
        external: &["actix::Addr", "fs::read", "openssl::", "pilothouse_actors::", "tokio::"],
    },
    Layer {
        name: "pki",
        allowed: &["limits", "config", "telemetry"],
        external: &["fs::", "openssl::", "pilothouse_actors::", "process::abort"],
    },
    Layer {
        name: "audit",
        allowed: &["limits", "config", "metrics"],
        external: &["fs::", "pilothouse_actors::", "tokio::"],
    },
    Layer {
        name: "live_index",
        allowed: &["limits"],
        external: &["actix::", "pilothouse_actors::", "serde_json::", "tokio::"],
    },
    Layer {
        name: "auth",
        allowed: &["limits", "config", "metrics", "pki", "live_index"],
        external: &["actix::", "openssl::", "pilothouse_actors::", "prometheus::", "serde_json::", "tokio::"],
    },
    Layer {
        name: "flowcontrol",
        allowed: &["limits", "metrics", "live_index"],
        external: &["actix::", "pilothouse_actors::", "prometheus::", "tokio::"],
    },
    Layer {
        name: "registry",
        allowed: &["limits", "metrics", "pki", "audit", "auth", "flowcontrol"],
        external: &["actix::", "openssl::", "pilothouse_actors::", "serde_json::", "tokio::"],
    },
    Layer {
        name: "admission",
        allowed: &["limits", "metrics", "pki", "live_index", "auth", "registry"],
        external: &["actix::", "openssl::", "pilothouse_actors::", "serde_json::", "tokio::"],
    },
    Layer {
        name: "aggregation",
        allowed: &["limits", "live_index", "registry"],
        external: &["actix::", "pilothouse_actors::", "tokio::"],
    },
    Layer {
        name: "verbs",
        allowed: &["limits", "metrics", "pki", "auth", "flowcontrol", "registry"],
        external: &["actix::", "openssl::", "pilothouse_actors::", "serde_json::", "tokio::"],
    },
    Layer {
        name: "bootstrap",
        allowed: &["registry", "verbs"],
        external: &["actix::", "pilothouse_actors::", "serde_json::", "tokio::"],
    },
    Layer {
        name: "apiextensions",
        allowed: &["limits", "live_index", "registry", "bootstrap", "verbs"],
        external: &["actix::", "pilothouse_actors::", "tokio::"],
    },
    Layer {
        name: "controllers",
        allowed: &["limits", "metrics", "pki", "auth", "registry", "aggregation", "bootstrap", "verbs"],
        external: &["actix::", "openssl::", "pilothouse_actors::", "serde_json::", "tokio::"],
    },
    Layer {
        name: "backups",
        allowed: &["limits", "metrics"],
        external: &["fs::", "pilothouse_actors::backup::", "pilothouse_actors::disk_bytes::", "tokio::"],
    },
    Layer {
        name: "http",
        allowed: &[
            "limits",
            "backups",
            "config",
            "telemetry",
            "metrics",
            "pki",
            "audit",
            "live_index",
            "auth",
            "flowcontrol",
            "registry",
            "aggregation",
            "verbs",
        ],
        external: &[
            "TcpListener",
            "TcpStream",
            "actix::",
            "actix_http::",
            "actix_rt::",
            "actix_server::",
            "actix_service::",
            "actix_web::",
            "h2::",
            "openssl::",
            "pilothouse_actors::",
            "prometheus::",
            "serde_json::",
            "tokio::",
        ],
    },
    Layer {
        name: "server",
        allowed: &[
            "limits",
            "backups",
            "config",
            "metrics",
            "encryption",
            "pki",
            "audit",
            "live_index",
            "auth",
            "flowcontrol",
            "registry",
            "admission",
            "aggregation",
            "verbs",
            "bootstrap",
            "apiextensions",
            "controllers",
            "http",
        ],
        external: &["actix::", "actix_rt::", "fs::", "pilothouse_actors::", "redb::", "tokio::"],
    },
    Layer {
        name: "commands",
        allowed: &["limits", "encryption", "http", "server"],
        external: &[
            "TcpStream",
            "clap::",
            "fs::",
            "openssl::",
            "pilothouse_actors::backup::",
            "pilothouse_actors::engine::",
            "process::ExitCode",
            "process::id",
            "redb::",
            "serde_json::",
            "tokio::",
        ],
    },
    Layer { name: "main", allowed: &[], external: &["pilothouse::", "process::", "tokio::"] },
];
