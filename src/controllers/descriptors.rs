//! The controllers that `--controllers` enables: their names, service accounts and constructors.

use std::cell::RefCell;
use std::rc::Rc;

use pilothouse_types::clock::Clock;

use super::bootstrap_tokens::{BootstrapSigner, TokenCleaner};
use super::client::Client;
use super::clusterrole_aggregation::ClusterRoleAggregation;
use super::csr::{CertificateApprover, CertificateSigner};
use super::csr_cleaner::CertificateCleaner;
use super::garbagecollector::GarbageCollector;
use super::legacy_serviceaccount_token_cleaner::LegacyTokenCleaner;
use super::namespace::{DeletionRules, NamespaceController};
use super::per_namespace::{NamespaceObject, PerNamespace};
use super::podgc::PodCollector;
use super::pv_protection::{Protected, Protection};
use super::resourcequota::QuotaStatus;
use super::serviceaccount_token::AccountTokens;
use super::start::{ControllerContext, Settings};
use super::storage_version_migrator::{self, StorageVersionMigrator};
use super::storageversion_garbage_collector::StorageVersionCollector;
use super::ttl_after_finished::TtlAfterFinished;
use super::validatingadmissionpolicy_status::PolicyTypeCheck;

/// The controller that signs the tokens of Secrets.
pub const LEGACY_TOKENS: &str = "serviceaccount-token-controller";

/// One controller.
pub struct ControllerDescriptor {
    /// Its name in kube-controller-manager, used in flags, health checks and metrics.
    pub name: &'static str,
    /// Its deprecated name.
    pub old_name: &'static str,
    /// The user it acts as.
    identity: ControllerIdentity,
    /// Starts it.
    run: fn(StartInputs<'_>),
}

/// The user that a controller acts as.
#[derive(Clone, Copy)]
enum ControllerIdentity {
    /// The service account of this name in kube-system.
    Account(&'static str),
    /// kube-controller-manager itself, for its part of this name.
    Manager(&'static str),
}

/// The inputs of a controller.
struct StartInputs<'a> {
    context: &'a ControllerContext,
    name: &'static str,
    client: Client,
    settings: &'a Settings,
    clock: Clock,
}

const fn entry(
    name: &'static str,
    old_name: &'static str,
    account: &'static str,
    run: fn(StartInputs<'_>),
) -> ControllerDescriptor {
    ControllerDescriptor { name, old_name, identity: ControllerIdentity::Account(account), run }
}

/// All controllers that can be enabled.
pub static DESCRIPTORS: &[ControllerDescriptor] = &[
    entry("namespace-controller", "namespace", "namespace-controller", namespace),
    entry("garbage-collector-controller", "garbagecollector", "generic-garbage-collector", garbagecollector),
    entry("serviceaccount-controller", "serviceaccount", "service-account-controller", |inputs| {
        let (client, template) = (inputs.client, Rc::new(NamespaceObject::default_account()));
        inputs.context.run(inputs.name, move || PerNamespace::new(client.clone(), template.clone()));
    }),
    entry(
        "root-ca-certificate-publisher-controller",
        "root-ca-cert-publisher",
        "root-ca-cert-publisher",
        root_certificate,
    ),
    ControllerDescriptor {
        name: LEGACY_TOKENS,
        old_name: "serviceaccount-token",
        // It creates the tokens of service accounts, so it cannot act as one.
        identity: ControllerIdentity::Manager("tokens-controller"),
        run: serviceaccount_token,
    },
    entry(
        "legacy-serviceaccount-token-cleaner-controller",
        "legacy-service-account-token-cleaner",
        "legacy-service-account-token-cleaner",
        legacy_token_cleaner,
    ),
    entry("resourcequota-controller", "resourcequota", "resourcequota-controller", resourcequota),
    entry("pod-garbage-collector-controller", "podgc", "pod-garbage-collector", |inputs| {
        let StartInputs { context, name, client, settings, clock } = inputs;
        let threshold = settings.max_finished_pods;
        context.run(name, move || PodCollector::new(client.clone(), clock.clone(), threshold));
    }),
    entry("bootstrap-signer-controller", "bootstrapsigner", "bootstrap-signer", |inputs| {
        let StartInputs { context, name, client, settings, .. } = inputs;
        let key_part = settings.signing_key_part;
        context.run(name, move || BootstrapSigner { client: client.clone(), key_part });
    }),
    entry("token-cleaner-controller", "tokencleaner", "token-cleaner", |inputs| {
        inputs.context.run(inputs.name, move || TokenCleaner { client: inputs.client.clone() });
    }),
    entry("ttl-after-finished-controller", "ttl-after-finished", "ttl-after-finished-controller", |inputs| {
        inputs.context.run(inputs.name, move || TtlAfterFinished { client: inputs.client.clone() });
    }),
    entry(
        "persistentvolumeclaim-protection-controller",
        "pvc-protection",
        "pvc-protection-controller",
        |inputs| protection(inputs, Protected::Claims),
    ),
    entry("persistentvolume-protection-controller", "pv-protection", "pv-protection-controller", |inputs| {
        protection(inputs, Protected::Volumes);
    }),
    entry("certificatesigningrequest-cleaner-controller", "csrcleaner", "certificate-controller", |inputs| {
        inputs.context.run(inputs.name, move || CertificateCleaner { client: inputs.client.clone() });
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
        |inputs| inputs.context.run(inputs.name, move || ClusterRoleAggregation::new(inputs.client.clone())),
    ),
    entry(
        "validatingadmissionpolicy-status-controller",
        "validatingadmissionpolicy-status",
        "validatingadmissionpolicy-status-controller",
        |inputs| inputs.context.run(inputs.name, move || PolicyTypeCheck { client: inputs.client.clone() }),
    ),
    entry(storage_version_migrator::NAME, "svm", storage_version_migrator::NAME, storage_version_migrator),
    entry(
        "storageversion-garbage-collector-controller",
        "storage-version-gc",
        "storage-version-garbage-collector",
        storage_version_collector,
    ),
];

impl ControllerContext {
    /// Starts a controller by its descriptor.
    pub(super) fn run_descriptor(&self, entry: &ControllerDescriptor, settings: &Settings, clock: &Clock) {
        let ControllerDescriptor { name, identity, run, .. } = entry;
        let client = match identity {
            ControllerIdentity::Account(account) => self.client(account),
            ControllerIdentity::Manager(part) => self.manager_client(part),
        };
        run(StartInputs { context: self, name, client, settings, clock: clock.clone() });
    }
}

fn namespace(StartInputs { context, name, client, settings, clock }: StartInputs<'_>) {
    let rules =
        DeletionRules { pods_first: settings.pods_first, require_namespaces: settings.require_namespaces };
    let extensions = context.extensions.clone();
    context.run(name, move || {
        NamespaceController::new(client.clone(), clock.clone(), rules, extensions.clone())
    });
}

fn garbagecollector(StartInputs { context, name, client, .. }: StartInputs<'_>) {
    let informers = context.informers.clone();
    context.run(name, move || GarbageCollector::new(client.clone(), informers.informer().0));
}

fn resourcequota(StartInputs { context, name, client, settings, clock }: StartInputs<'_>) {
    let (features, sync_period) = (settings.quota_features, settings.quota_sync_period);
    context.run(name, move || QuotaStatus::new(client.clone(), clock.clone(), features, sync_period));
}

fn root_certificate(StartInputs { context, name, client, .. }: StartInputs<'_>) {
    context.run_with_authorities(name, move |authorities| {
        let template = Rc::new(NamespaceObject::root_certificate(&authorities.root_pem));
        PerNamespace::new(client.clone(), template)
    });
}

fn serviceaccount_token(StartInputs { context, name, client, .. }: StartInputs<'_>) {
    let sign = context.sign_token.clone();
    context.run_with_authorities(name, move |authorities| AccountTokens {
        client: client.clone(),
        authorities,
        sign: sign.clone(),
        pending: RefCell::default(),
    });
}

fn legacy_token_cleaner(StartInputs { context, name, client, settings, clock }: StartInputs<'_>) {
    let unused_for = settings.tokens_unused_for;
    context.run(name, move || LegacyTokenCleaner {
        client: client.clone(),
        clock: clock.clone(),
        unused_for,
    });
}

fn protection(StartInputs { context, name, client, .. }: StartInputs<'_>, protected: Protected) {
    context.run(name, move || Protection::new(client.clone(), protected));
}

fn csr_signing(StartInputs { context, name, client, settings, clock }: StartInputs<'_>) {
    let max_lifetime = settings.max_certificate_lifetime;
    context.run_with_authorities(name, move |authorities| CertificateSigner {
        client: client.clone(),
        clock: clock.clone(),
        authorities,
        max_lifetime,
    });
}

fn csr_approving(StartInputs { context, name, client, .. }: StartInputs<'_>) {
    context.run(name, move || CertificateApprover { client: client.clone() });
}

fn storage_version_migrator(StartInputs { context, name, client, settings, .. }: StartInputs<'_>) {
    if settings.storage_versions.migrates {
        let extensions = context.extensions.clone();
        context.run(name, move || StorageVersionMigrator {
            client: client.clone(),
            extensions: extensions.clone(),
        });
    }
}

fn storage_version_collector(StartInputs { context, name, client, settings, .. }: StartInputs<'_>) {
    if settings.storage_versions.are_published {
        context.run(name, move || StorageVersionCollector { client: client.clone() });
    }
}
