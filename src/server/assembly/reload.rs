//! Reloads keys and certificates while the server runs. New connections get the new serving certificate, and new requests are
//! checked against the new CAs. Rotation needs no restart.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use pilothouse_client::upstream::{self, CertificateAndKey, TlsError, TlsFiles};
use tokio::sync::watch;

use super::controller_setup;
use crate::auth::certificate::CertificateVerifier;
use crate::auth::front_proxy::FrontProxy;
use crate::config::{Aggregation, Kubelets};
use crate::controllers::start::Authorities;
use crate::http::handler::worker::Shared;
use crate::limits::{PKI_CHECK_INTERVAL, PKI_RENEW_INTERVAL};
use crate::pki::{self, Pki};
use crate::server::application::StartContext;

/// Modification time and size: a change that is visible without reading the file.
type FileStamp = Option<(SystemTime, u64)>;

/// The task that reloads certificates.
pub struct Reload {
    /// The paths of the files, and the TLS contexts that get a new serving certificate.
    pub context: StartContext,
    /// The verifier that gets new client CAs.
    pub certificates: Arc<CertificateVerifier>,
    /// The verifier that gets new front proxy CAs.
    pub front_proxy: Option<Arc<FrontProxy>>,
    /// The certificates in use, which other parts read.
    pub current_pki: Arc<ArcSwap<Pki>>,
    /// Where the controllers get new CAs and signers.
    pub authorities: Arc<watch::Sender<Arc<Authorities>>>,
    /// Tells when the server stops.
    pub shared: Arc<Shared>,
}

impl Reload {
    /// Checks the files periodically, until the server stops.
    pub async fn run(self) {
        // The first check finds changes since the start.
        let (mut serving, mut signers) = (FileSet::default(), FileSet::default());
        let (mut proxy_client, mut kubelets) = (FileSet::default(), FileSet::default());
        let mut peers = FileSet::default();
        let mut ticks = tokio::time::interval(PKI_CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let renew_ticks = PKI_RENEW_INTERVAL.as_secs() / PKI_CHECK_INTERVAL.as_secs().max(1);
        let mut tick = 0_u64;
        while !self.shared.health.stopping.load(Ordering::Acquire) {
            ticks.tick().await;
            tick += 1;
            // Without a directory to keep it in, every check would make a new CA.
            if self.context.config.cert_dir().is_some() {
                serving.reload_if_changed(
                    self.file_stamps(),
                    tick.is_multiple_of(renew_ticks.max(1)),
                    || {
                        let StartContext { config, address, clock, .. } = &self.context;
                        pki::renew(config, *address, clock)
                            .map_err(to_message)
                            .and_then(|pki| self.apply(pki))
                    },
                );
            }
            // Signing keys may lie outside of the directory, and the CA that the controllers publish is the directory's.
            let stamps = self.context.config.signing.files().into_iter().map(file_stamp).collect();
            signers.reload_if_changed(stamps, false, || self.send_signers());
            let aggregation = &self.context.config.aggregation;
            let files = [&aggregation.proxy_client_cert_file, &aggregation.proxy_client_key_file];
            let stamps = files.into_iter().flatten().map(|path| file_stamp(path)).collect();
            proxy_client.reload_if_changed(stamps, false, || {
                let identity = proxy_identity(aggregation).map_err(to_message)?;
                self.shared.connect.upstream.set_extension_identity(identity).map_err(to_message)
            });
            let file = self.context.config.peers.peer_ca_file.as_deref();
            if let Some((own_peers, file)) = self.shared.peers.as_ref().zip(file) {
                peers.reload_if_changed(vec![file_stamp(file)], false, || {
                    own_peers.trust(pki::read_bundle(file).map_err(to_message)?);
                    Ok(())
                });
            }
            let files = kubelet_files(&self.context.config.kubelets);
            let paths = files.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
            let stamps = paths.chain(&files.authority).map(|path| file_stamp(path)).collect();
            kubelets.reload_if_changed(stamps, false, || {
                self.shared.connect.upstream.set_kubelet_tls(&files).map_err(to_message)
            });
        }
    }

    fn apply(&self, pki: Pki) -> Result<(), String> {
        let current = self.current_pki.load();
        let serving_changed =
            pki.serving != current.serving || pki.sni_certificates != current.sni_certificates;
        let cas_changed =
            pki.client_ca_pem != current.client_ca_pem || pki.proxy_ca_pem != current.proxy_ca_pem;
        if !serving_changed && !cas_changed {
            return Ok(());
        }
        // The TLS handshake lists the client CAs, so both kinds of change replace it.
        self.context.tls.replace(&self.context.config.serving, &pki).map_err(to_message)?;
        self.certificates.trust(&pki.client_ca_pem).map_err(to_message)?;
        if let (Some(proxy), Some(pem)) = (&self.front_proxy, &pki.proxy_ca_pem) {
            proxy.trust(pem).map_err(to_message)?;
        }
        tracing::info!(serving = serving_changed, authorities = cas_changed, "certificates were reloaded");
        self.current_pki.store(Arc::new(pki));
        self.send_signers()
    }

    /// Sends new CAs and signers to the controllers.
    fn send_signers(&self) -> Result<(), String> {
        let authorities = controller_setup::authorities(&self.context.config, &self.current_pki.load())
            .map_err(to_message)?;
        self.authorities.send_if_modified(|current| {
            let is_new = *authorities != **current;
            if is_new {
                tracing::info!("the controllers use the reloaded certificates");
                *current = authorities;
            }
            is_new
        });
        Ok(())
    }

    fn file_stamps(&self) -> Vec<FileStamp> {
        let config = &self.context.config;
        let configured = [
            &config.serving.tls_cert_file,
            &config.serving.tls_private_key_file,
            &config.authentication.client_ca_file,
            &config.front_proxy.requestheader_client_ca_file,
        ];
        let generated = ["ca.crt", "ca.key", "apiserver.crt", "apiserver.key"];
        let directory = config.cert_dir();
        let generated =
            generated.iter().filter_map(|name| directory.as_ref().map(|directory| directory.join(name)));
        let sni_files =
            config.serving.tls_sni_cert_key.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
        let files = configured.into_iter().flatten().chain(sni_files).cloned().chain(generated);
        files.map(|path| file_stamp(&path)).collect()
    }
}

/// The client certificate and key (PEM) for connections to extension API servers; `None` if either is missing.
pub(super) fn proxy_identity(files: &Aggregation) -> Result<Option<CertificateAndKey>, TlsError> {
    let Some((certificate, key)) =
        files.proxy_client_cert_file.as_ref().zip(files.proxy_client_key_file.as_ref())
    else {
        return Ok(None);
    };
    Ok(Some((upstream::read(certificate)?, upstream::read(key)?)))
}

/// The files for TLS between this server and kubelets.
pub(super) fn kubelet_files(flags: &Kubelets) -> TlsFiles {
    TlsFiles {
        authority: flags.kubelet_certificate_authority.clone(),
        identity: flags.kubelet_client_certificate.clone().zip(flags.kubelet_client_key.clone()),
    }
}

fn file_stamp(path: &Path) -> FileStamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn to_message(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The state of some files at the last check.
#[derive(Default)]
struct FileSet {
    stamps: Option<Vec<FileStamp>>,
    /// The last error, so that it is logged only once.
    last_error: String,
}

impl FileSet {
    /// Reloads the files if they have changed, or if a reload is due anyway.
    fn reload_if_changed(
        &mut self,
        new_stamps: Vec<FileStamp>,
        is_due: bool,
        reload: impl FnOnce() -> Result<(), String>,
    ) {
        if self.stamps.as_ref() == Some(&new_stamps) && !is_due {
            return;
        }
        match reload() {
            Ok(()) => {
                self.stamps = Some(new_stamps);
                self.last_error.clear();
            }
            // The files are tried again at the next check: they may be half written, or not readable yet.
            Err(error) if error == self.last_error => {}
            Err(error) => {
                tracing::warn!(%error, "changed certificates cannot be loaded; the previous ones stay in use");
                self.last_error = error;
            }
        }
    }
}
