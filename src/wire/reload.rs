//! Keys and certificates that change while the server runs: from the next connection on it shows the new certificate, and
//! from the next request on it believes the new authorities. Operators and tools that rotate them need no restart.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use arc_swap::ArcSwap;

use crate::auth::certificate::CertificateVerifier;
use crate::auth::front_proxy::FrontProxy;
use crate::http::handler::worker::Shared;
use crate::limits::{PKI_LOOK_EVERY, PKI_RENEW_EVERY};
use crate::pki::{self, Pki};
use crate::server::wiring::Boot;

/// What can be told of a file without reading it.
type Mark = Option<(SystemTime, u64)>;

/// Who looks after the certificates.
pub struct Reload {
    /// Where the files are, and where a new serving certificate goes.
    pub boot: Boot,
    /// Where new authorities go.
    pub certificates: Arc<CertificateVerifier>,
    /// Where new authorities of the proxy go.
    pub front_proxy: Option<Arc<FrontProxy>>,
    /// Where it is kept what is used.
    pub trusted: Arc<ArcSwap<Pki>>,
    /// Says when the server stops.
    pub shared: Arc<Shared>,
}

impl Reload {
    /// Looks at the files from time to time, until the server stops.
    pub async fn run(self) {
        // Without a folder every look would make an authority of its own.
        if self.boot.config.cert_dir().is_none() {
            return;
        }
        // What has changed since the start is found by the first look.
        let (mut seen, mut told) = (None, String::new());
        let mut turns = tokio::time::interval(PKI_LOOK_EVERY);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let renew = PKI_RENEW_EVERY.as_secs() / PKI_LOOK_EVERY.as_secs().max(1);
        let mut turn = 0_u64;
        while !self.shared.health.stopping.load(Ordering::Acquire) {
            turns.tick().await;
            turn += 1;
            let marks = Some(self.marks());
            if marks == seen && !turn.is_multiple_of(renew.max(1)) {
                continue;
            }
            let Boot { config, address, clock, .. } = &self.boot;
            let taken = pki::renew(config, *address, clock).map_err(|error| error.to_string());
            match taken.and_then(|found| self.take(found)) {
                Ok(()) => {
                    seen = marks;
                    told.clear();
                }
                // What cannot be used now is looked at again: it may be half written, or not readable yet.
                Err(error) if error == told => {}
                Err(error) => {
                    tracing::warn!(%error, "changed certificates are not used");
                    told = error;
                }
            }
        }
    }

    fn take(&self, found: Pki) -> Result<(), String> {
        let used = self.trusted.load();
        let serving = found.serving.certificates_pem != used.serving.certificates_pem
            || found.serving.key_pem != used.serving.key_pem;
        let authorities =
            found.client_ca_pem != used.client_ca_pem || found.proxy_ca_pem != used.proxy_ca_pem;
        if !serving && !authorities {
            return Ok(());
        }
        // The handshake names the authorities too, so it changes with either.
        let text = |error: &dyn std::fmt::Display| error.to_string();
        self.boot.tls.replace(&self.boot.config.serving, &found).map_err(|error| text(&error))?;
        self.certificates.trust(&found.client_ca_pem).map_err(|error| text(&error))?;
        if let (Some(proxy), Some(pem)) = (&self.front_proxy, &found.proxy_ca_pem) {
            proxy.trust(pem).map_err(|error| text(&error))?;
        }
        tracing::info!(serving, authorities, "certificates were replaced");
        self.trusted.store(Arc::new(found));
        Ok(())
    }

    fn marks(&self) -> Vec<Mark> {
        let config = &self.boot.config;
        let named = [
            &config.serving.tls_cert_file,
            &config.serving.tls_private_key_file,
            &config.authentication.client_ca_file,
            &config.front_proxy.requestheader_client_ca_file,
        ];
        let made = ["ca.crt", "ca.key", "apiserver.crt", "apiserver.key"];
        let folder = config.cert_dir();
        let made = made.iter().filter_map(|name| folder.as_ref().map(|folder| folder.join(name)));
        let files = named.into_iter().flatten().cloned().chain(made);
        let mark = |path: PathBuf| {
            let known = std::fs::metadata(path).ok()?;
            Some((known.modified().ok()?, known.len()))
        };
        files.map(mark).collect()
    }
}
