//! The loops that `--controllers` enables: their names, service accounts and constructors.

use std::cell::RefCell;
use std::rc::Rc;

use pilothouse_actors::clock::Clock;

use super::bootstrap_tokens::{BootstrapSigner, TokenCleaner};
use super::client::Client;
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

/// One loop.
pub struct Entry {
    /// Its name in kube-controller-manager, used in flags, health checks and metrics.
    pub name: &'static str,
    /// Its deprecated name.
    pub old_name: &'static str,
    /// The service account that it acts as.
    account: &'static str,
    /// Starts it.
    run: fn(Making<'_>),
}

/// The inputs of a loop.
struct Making<'a> {
    house: &'a House,
    name: &'static str,
    client: Client,
    settings: &'a Settings,
    clock: Clock,
}

const fn entry(
    name: &'static str,
    old_name: &'static str,
    account: &'static str,
    run: fn(Making<'_>),
) -> Entry {
    Entry { name, old_name, account, run }
}

/// All loops that can be enabled.
pub static ROSTER: &[Entry] = &[
    entry("namespace-controller", "namespace", "namespace-controller", namespace),
    entry("garbage-collector-controller", "garbagecollector", "generic-garbage-collector", garbagecollector),
    entry("serviceaccount-controller", "serviceaccount", "service-account-controller", |making| {
        let (client, made) = (making.client, Rc::new(Made::default_account()));
        making.house.keep(making.name, move || PerNamespace::new(client.clone(), made.clone()));
    }),
    entry(
        "root-ca-certificate-publisher-controller",
        "root-ca-cert-publisher",
        "root-ca-cert-publisher",
        root_certificate,
    ),
    entry(
        "serviceaccount-token-controller",
        "serviceaccount-token",
        "service-account-token-controller",
        serviceaccount_token,
    ),
    entry(
        "legacy-serviceaccount-token-cleaner-controller",
        "legacy-service-account-token-cleaner",
        "legacy-service-account-token-cleaner",
        legacy_token_cleaner,
    ),
    entry("resourcequota-controller", "resourcequota", "resourcequota-controller", resourcequota),
    entry("pod-garbage-collector-controller", "podgc", "pod-garbage-collector", |making| {
        let Making { house, name, client, settings, clock } = making;
        let threshold = settings.pods_that_are_over;
        house.keep(name, move || PodCollector::new(client.clone(), clock.clone(), threshold));
    }),
    entry("bootstrap-signer-controller", "bootstrapsigner", "bootstrap-signer", |making| {
        making.house.keep(making.name, move || BootstrapSigner { client: making.client.clone() });
    }),
    entry("token-cleaner-controller", "tokencleaner", "token-cleaner", |making| {
        making.house.keep(making.name, move || TokenCleaner { client: making.client.clone() });
    }),
    entry("ttl-after-finished-controller", "ttl-after-finished", "ttl-after-finished-controller", |making| {
        making.house.keep(making.name, move || TtlAfterFinished { client: making.client.clone() });
    }),
    entry(
        "persistentvolumeclaim-protection-controller",
        "pvc-protection",
        "pvc-protection-controller",
        |making| protection(making, Protected::Claims),
    ),
    entry("persistentvolume-protection-controller", "pv-protection", "pv-protection-controller", |making| {
        protection(making, Protected::Volumes);
    }),
    entry("certificatesigningrequest-cleaner-controller", "csrcleaner", "certificate-controller", |making| {
        making.house.keep(making.name, move || CertificateCleaner { client: making.client.clone() });
    }),
    entry(
        "certificatesigningrequest-signing-controller",
        "csrsigning",
        "certificate-controller",
        csr_signing,
    ),
    entry(
        "certificatesigningrequest-approving-controller",
        "csrapproving",
        "certificate-controller",
        csr_approving,
    ),
    entry(
        "clusterrole-aggregation-controller",
        "clusterrole-aggregation",
        "clusterrole-aggregation-controller",
        |making| making.house.keep(making.name, move || GatheredRoles::new(making.client.clone())),
    ),
    entry(
        "validatingadmissionpolicy-status-controller",
        "validatingadmissionpolicy-status",
        "validatingadmissionpolicy-status-controller",
        |making| making.house.keep(making.name, move || PolicyTypes { client: making.client.clone() }),
    ),
];

impl House {
    /// Starts a loop of the roster.
    pub(super) fn keep_entry(&self, entry: &Entry, settings: &Settings, clock: &Clock) {
        let Entry { name, account, run, .. } = entry;
        run(Making { house: self, name, client: self.client(account), settings, clock: clock.clone() });
    }
}

fn namespace(Making { house, name, client, settings, clock }: Making<'_>) {
    let rules = Rules { pods_first: settings.pods_first, needed: settings.namespaces_needed };
    let extensions = house.extensions.clone();
    house.keep(name, move || {
        NamespaceController::new(client.clone(), clock.clone(), rules, extensions.clone())
    });
}

fn garbagecollector(Making { house, name, client, .. }: Making<'_>) {
    let hearing = house.hearing.clone();
    house.keep(name, move || GarbageCollector::new(client.clone(), hearing.informer().0));
}

fn resourcequota(Making { house, name, client, settings, clock }: Making<'_>) {
    let (features, every) = (settings.quota_features, settings.quotas_counted_every);
    house.keep(name, move || QuotaStatus::new(client.clone(), clock.clone(), features, every));
}

fn root_certificate(Making { house, name, client, .. }: Making<'_>) {
    house.keep_told(name, move |authorities| {
        let made = Rc::new(Made::root_certificate(&authorities.root_pem));
        PerNamespace::new(client.clone(), made)
    });
}

fn serviceaccount_token(Making { house, name, client, .. }: Making<'_>) {
    let sign = house.sign_token.clone();
    house.keep_told(name, move |authorities| AccountTokens {
        client: client.clone(),
        authorities,
        sign: sign.clone(),
        more: RefCell::default(),
    });
}

fn legacy_token_cleaner(Making { house, name, client, settings, clock }: Making<'_>) {
    let unused_for = settings.tokens_unused_for;
    house.keep(name, move || LegacyTokenCleaner { client: client.clone(), clock: clock.clone(), unused_for });
}

fn protection(Making { house, name, client, .. }: Making<'_>, what: Protected) {
    house.keep(name, move || Protection::new(client.clone(), what));
}

fn csr_signing(Making { house, name, client, settings, clock }: Making<'_>) {
    let longest = settings.longest_certificate;
    house.keep_told(name, move |authorities| CertificateSigner {
        client: client.clone(),
        clock: clock.clone(),
        authorities,
        longest,
    });
}

fn csr_approving(Making { house, name, client, .. }: Making<'_>) {
    let authorizer = house.authorizer.clone();
    house.keep(name, move || CertificateApprover { client: client.clone(), authorizer: authorizer.clone() });
}
