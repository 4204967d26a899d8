//! Which loop each name stands for, and what it is made from.

use std::rc::Rc;

use pilothouse_actors::clock::Clock;

use super::bootstrap_tokens::{BootstrapSigner, TokenCleaner};
use super::clusterrole_aggregation::GatheredRoles;
use super::csr::{CertificateApprover, CertificateSigner};
use super::csr_cleaner::CertificateCleaner;
use super::garbagecollector::GarbageCollector;
use super::legacy_serviceaccount_token_cleaner::LegacyTokenCleaner;
use super::namespace::{NamespaceController, Rules};
use super::per_namespace::{Made, PerNamespace};
use super::podgc::PodCollector;
use super::pv_protection::{Protected, Protection};
use super::resourcequota::QuotaStatus;
use super::serviceaccount_token::AccountTokens;
use super::start::{House, Settings};
use super::ttl_after_finished::TtlAfterFinished;
use super::validatingadmissionpolicy_status::PolicyTypes;

impl House {
    /// Runs the loop of this name.
    pub(super) fn keep_named(&self, name: &'static str, settings: &Settings, clock: &Clock) {
        match name {
            "namespace-controller" => {
                let (client, clock) = (self.client("namespace-controller"), clock.clone());
                let rules = Rules { pods_first: settings.pods_first, needed: settings.namespaces_needed };
                let extensions = self.extensions.clone();
                self.keep(name, move || {
                    NamespaceController::new(client.clone(), clock.clone(), rules, extensions.clone())
                });
            }
            "garbage-collector-controller" => {
                let (client, hearing) = (self.client("generic-garbage-collector"), self.hearing.clone());
                self.keep(name, move || GarbageCollector::new(client.clone(), hearing.informer().0));
            }
            "resourcequota-controller" => {
                let (client, clock) = (self.client("resourcequota-controller"), clock.clone());
                let (features, every) = (settings.quota_features, settings.quotas_counted_every);
                self.keep(name, move || QuotaStatus::new(client.clone(), clock.clone(), features, every));
            }
            "pod-garbage-collector-controller" => {
                let (client, clock) = (self.client("pod-garbage-collector"), clock.clone());
                let threshold = settings.pods_that_are_over;
                self.keep(name, move || PodCollector::new(client.clone(), clock.clone(), threshold));
            }
            "legacy-serviceaccount-token-cleaner-controller" => {
                let client = self.client("legacy-service-account-token-cleaner");
                let (clock, unused_for) = (clock.clone(), settings.tokens_unused_for);
                self.keep(name, move || LegacyTokenCleaner {
                    client: client.clone(),
                    clock: clock.clone(),
                    unused_for,
                });
            }
            "serviceaccount-controller" => {
                let (client, made) =
                    (self.client("service-account-controller"), Rc::new(Made::default_account()));
                self.keep(name, move || PerNamespace::new(client.clone(), made.clone()));
            }
            "root-ca-certificate-publisher-controller" => {
                let client = self.client("root-ca-cert-publisher");
                self.keep_told(name, move |authorities| {
                    let made = Rc::new(Made::root_certificate(&authorities.root_pem));
                    PerNamespace::new(client.clone(), made)
                });
            }
            "serviceaccount-token-controller" => {
                let (client, sign) =
                    (self.client("service-account-token-controller"), self.sign_token.clone());
                self.keep_told(name, move |authorities| AccountTokens {
                    client: client.clone(),
                    authorities,
                    sign: sign.clone(),
                });
            }
            "bootstrap-signer-controller" => {
                let client = self.client("bootstrap-signer");
                self.keep(name, move || BootstrapSigner { client: client.clone() });
            }
            "token-cleaner-controller" => {
                let client = self.client("token-cleaner");
                self.keep(name, move || TokenCleaner { client: client.clone() });
            }
            "ttl-after-finished-controller" => {
                let client = self.client("ttl-after-finished-controller");
                self.keep(name, move || TtlAfterFinished { client: client.clone() });
            }
            "persistentvolumeclaim-protection-controller" => {
                let client = self.client("pvc-protection-controller");
                self.keep(name, move || Protection::new(client.clone(), Protected::Claims));
            }
            "persistentvolume-protection-controller" => {
                let client = self.client("pv-protection-controller");
                self.keep(name, move || Protection::new(client.clone(), Protected::Volumes));
            }
            "certificatesigningrequest-cleaner-controller" => {
                let client = self.client("certificate-controller");
                self.keep(name, move || CertificateCleaner { client: client.clone() });
            }
            "certificatesigningrequest-approving-controller" => {
                let (client, authorizer) = (self.client("certificate-controller"), self.authorizer.clone());
                self.keep(name, move || CertificateApprover {
                    client: client.clone(),
                    authorizer: authorizer.clone(),
                });
            }
            "certificatesigningrequest-signing-controller" => {
                let (client, clock, longest) =
                    (self.client("certificate-controller"), clock.clone(), settings.longest_certificate);
                self.keep_told(name, move |authorities| CertificateSigner {
                    client: client.clone(),
                    clock: clock.clone(),
                    authorities,
                    longest,
                });
            }
            "clusterrole-aggregation-controller" => {
                let client = self.client(name);
                self.keep(name, move || GatheredRoles::new(client.clone()));
            }
            "validatingadmissionpolicy-status-controller" => {
                let client = self.client(name);
                self.keep(name, move || PolicyTypes { client: client.clone() });
            }
            _ => tracing::warn!(controller = name, "no such control loop"),
        }
    }
}
