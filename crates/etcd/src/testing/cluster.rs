//! Members of etcd that can be killed, restarted and paused.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::binary::{crash_safe_etcd, etcd};
use super::certificates::Certificates;
use super::process::Process;
use crate::client::Client;
use crate::messages::RangeRequest;
use crate::settings::Settings;

/// How long anything may take that happens sooner or later.
const PATIENCE: Duration = Duration::from_secs(60);
/// Another program may take a port between its choice and its use.
const START_ATTEMPTS: usize = 5;

/// What a cluster is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many members it has.
    pub members: usize,
    /// Whether clients need TLS and a certificate.
    pub has_tls: bool,
    /// Further flags of every member.
    pub flags: Vec<String>,
    /// Where its folder is made; `None` for the system's place for temporary files, which may be memory.
    pub parent: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options { members: 1, has_tls: false, flags: Vec::new(), parent: None }
    }
}

/// A cluster on the loopback interface. Its members and their data are gone when it is dropped.
pub struct Cluster {
    /// The members.
    pub members: Vec<Member>,
    /// The certificates, if clients need TLS.
    pub certificates: Option<Certificates>,
    folder: TempDir,
}

/// A member.
pub struct Member {
    /// Where clients reach it.
    pub port: u16,
    program: &'static Path,
    arguments: Vec<String>,
    log: PathBuf,
    process: Option<Process>,
    scheme: &'static str,
}

impl Member {
    /// Its address.
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// The number of its process, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Starts it, with the data that it has.
    pub fn start(&mut self) {
        self.process = Some(Process::start(self.program, &self.arguments, &self.log));
    }

    /// Gives it a flag more, from its next start on. Of two for the same, the later one counts.
    pub fn add_flag(&mut self, flag: &str) {
        self.arguments.push(flag.to_owned());
    }

    /// Kills it. Its data stay.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Asks it to end, and waits until it has. Its data stay.
    pub async fn terminate(&mut self) {
        self.process.as_ref().unwrap().signal(Signal::SIGTERM);
        while self.is_running() {
            sleep(Duration::from_millis(10)).await;
        }
        self.process = None;
    }

    /// Stops it where it is. Its connections stay.
    pub fn pause(&self) {
        self.process.as_ref().unwrap().pause();
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.process.as_ref().unwrap().signal(Signal::SIGCONT);
    }

    fn is_running(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_running)
    }
}

impl Cluster {
    /// One member.
    pub async fn single() -> Cluster {
        Cluster::start(Options::default()).await
    }

    /// Three members.
    pub async fn three() -> Cluster {
        Cluster::start(Options { members: 3, ..Options::default() }).await
    }

    /// A cluster that has a leader.
    pub async fn start(options: Options) -> Cluster {
        let mut logs = String::new();
        for _attempt in 0..START_ATTEMPTS {
            let mut cluster = Cluster::prepare(&options);
            cluster.members.iter_mut().for_each(Member::start);
            if cluster.is_started().await {
                return cluster;
            }
            logs = cluster.logs();
        }
        panic!("etcd does not start:\n{logs}");
    }

    fn prepare(options: &Options) -> Cluster {
        let folder = options.parent.as_ref().map_or_else(TempDir::new, TempDir::new_in).unwrap();
        let certificates = options.has_tls.then(|| Certificates::create(folder.path()));
        // All are bound before the first is given away, so that they differ.
        let sockets: Vec<_> =
            (0..2 * options.members).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        let (client_ports, peer_ports) = ports.split_at(options.members);
        let peer = |index: usize| format!("http://127.0.0.1:{}", peer_ports[index]);
        let peers: Vec<String> =
            (0..options.members).map(|index| format!("m{index}={}", peer(index))).collect();
        // Whoever wants several members kills some.
        let program = if options.members > 1 { crash_safe_etcd() } else { etcd() };
        let scheme = if options.has_tls { "https" } else { "http" };
        let members = client_ports.iter().enumerate().map(|(index, port)| {
            let url = format!("{scheme}://127.0.0.1:{port}");
            let data = folder.path().join(format!("m{index}"));
            let mut arguments = vec![
                format!("--name=m{index}"),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={url}"),
                format!("--advertise-client-urls={url}"),
                format!("--listen-peer-urls={}", peer(index)),
                format!("--initial-advertise-peer-urls={}", peer(index)),
                format!("--initial-cluster={}", peers.join(",")),
                // Tests ping more often than others may.
                "--grpc-keepalive-min-time=100ms".to_owned(),
            ];
            if let Some(certificates) = &certificates {
                let (certificate, key) = &certificates.server;
                arguments.extend([
                    format!("--cert-file={}", certificate.display()),
                    format!("--key-file={}", key.display()),
                    format!("--trusted-ca-file={}", certificates.authority.display()),
                    "--client-cert-auth".to_owned(),
                ]);
            }
            arguments.extend(options.flags.iter().cloned());
            let log = folder.path().join(format!("m{index}.log"));
            Member { port: *port, program, arguments, log, process: None, scheme }
        });
        Cluster { members: members.collect(), certificates, folder }
    }

    /// Waits until the cluster answers; false if a member has ended instead.
    async fn is_started(&self) -> bool {
        let client = self.client().with_timeout(PATIENCE);
        let answer = client.range(RangeRequest { count_only: true, ..RangeRequest::key("a") });
        tokio::pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return answer.is_ok(),
                () = sleep(Duration::from_millis(20)) => {}
            }
            if !self.members.iter().all(Member::is_running) {
                return false;
            }
        }
    }

    /// The settings of a client that knows all members, and that does not wait as long as others do.
    pub fn settings(&self) -> Settings {
        self.settings_for(self.members.iter().map(Member::url))
    }

    /// The same for other addresses, such as that of a proxy.
    pub fn settings_for(&self, endpoints: impl IntoIterator<Item = String>) -> Settings {
        let mut settings = Settings::new(endpoints);
        settings.request_timeout = PATIENCE / 2;
        settings.keepalive_time = Duration::from_secs(1);
        settings.keepalive_timeout = Duration::from_secs(1);
        settings.silence = Duration::from_millis(500);
        settings.dial_timeout = PATIENCE / 10;
        settings.tls = self.certificates.as_ref().map(Certificates::client_files).unwrap_or_default();
        settings
    }

    /// A client that knows all members. Its connections live on this runtime.
    pub fn client(&self) -> Client {
        Client::new(self.settings(), Handle::current()).unwrap()
    }

    /// A client that knows one member alone.
    pub fn client_of(&self, member: usize) -> Client {
        Client::new(self.settings_for([self.members[member].url()]), Handle::current()).unwrap()
    }

    /// The member that leads, as soon as there is one.
    pub async fn leader(&self) -> usize {
        let client = self.client().with_timeout(Duration::from_secs(1));
        loop {
            for (index, status) in client.statuses().await.into_iter().enumerate() {
                let leads = |status: crate::messages::StatusResponse| {
                    status.header.is_some_and(|header| header.member_id == status.leader)
                };
                if status.is_ok_and(leads) {
                    return index;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// What the members have logged.
    pub fn logs(&self) -> String {
        let read = |member: &Member| std::fs::read_to_string(&member.log).unwrap_or_default();
        self.members.iter().map(read).collect::<Vec<_>>().join("\n")
    }

    /// Where the data and the logs are.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }
}
