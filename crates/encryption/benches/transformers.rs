//! The processor time of encrypting and decrypting one object of 1 KiB, by provider. The goal is at most 5 µs.
//!
//! `cargo bench -p pilothouse-encryption --bench transformers`

#![allow(clippy::unwrap_used, reason = "a bench that meets the unexpected fails")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::Criterion;
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use crypto_secretbox::aead::AeadInPlace as _;
use crypto_secretbox::{KeyInit as _, XSalsa20Poly1305};
use nix::time::{ClockId, clock_gettime};
use pilothouse_encryption::testing::{
    KeyFile, KmsPlugin, PluginState, configuration, keyed_provider, kms_provider,
};
use pilothouse_encryption::{Encryption, Settings};

const OBJECT_BYTES: usize = 1 << 10;
const CONTEXT: &[u8] = b"/registry/secrets/default/the-name-of-a-secret";

/// The processor time of this thread, which other work of the machine does not change.
struct ThreadTime;

impl Measurement for ThreadTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
    }

    fn end(&self, start: Duration) -> Duration {
        self.start().saturating_sub(start)
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// The floor of secretbox: its library alone, which is the only one that is well kept.
fn bench_floor(criterion: &mut Criterion<ThreadTime>) {
    let cipher = XSalsa20Poly1305::new(&[1; 32].into());
    let nonce = [2; XSalsa20Poly1305::NONCE_SIZE].into();
    let mut text = vec![b'x'; OBJECT_BYTES];
    criterion.bench_function("secretbox encrypt, the library alone", |bencher| {
        bencher
            .iter(|| black_box(cipher.encrypt_in_place_detached(&nonce, &[], black_box(&mut text)).unwrap()));
    });
}

fn main() {
    let directory = tempfile::tempdir().unwrap();
    let state = Arc::new(PluginState::new(KeyFile::in_memory("key")));
    let plugin = KmsPlugin::start(&directory.path().join("kms.sock"), state).unwrap();
    let mut criterion = Criterion::default().with_measurement(ThreadTime).configure_from_args();
    let keyed = ["aesgcm", "aescbc", "secretbox"].map(|kind| (kind, keyed_provider(kind, "key", 1)));
    let kms = [("kms v2", kms_provider("v2", "kms", plugin.endpoint()))];
    for (name, provider) in keyed.into_iter().chain(kms) {
        let text = configuration("[secrets]", &format!("[{provider}]"));
        let settings = Settings { is_polling: false, ..Settings::default() };
        let encryption = Encryption::load(&text, settings).unwrap();
        let secrets = encryption.for_resource("", "secrets");
        let plain = vec![b'x'; OBJECT_BYTES];
        let stored = secrets.encrypt(&plain, CONTEXT).unwrap().into_owned();
        criterion.bench_function(&format!("{name} encrypt"), |bencher| {
            bencher.iter(|| black_box(secrets.encrypt(black_box(&plain), CONTEXT).unwrap()));
        });
        criterion.bench_function(&format!("{name} decrypt"), |bencher| {
            bencher.iter(|| black_box(secrets.decrypt(black_box(&stored), CONTEXT).unwrap()));
        });
        if let Some(other) = name.starts_with("kms").then(|| {
            // A server that has not written the object, but has its data key.
            let settings = Settings { is_polling: false, ..Settings::default() };
            Encryption::load(&text, settings).unwrap()
        }) {
            let secrets = other.for_resource("", "secrets");
            criterion.bench_function(&format!("{name} decrypt, seed of another server"), |bencher| {
                bencher.iter(|| black_box(secrets.decrypt(black_box(&stored), CONTEXT).unwrap()));
            });
        }
    }
    bench_floor(&mut criterion);
    criterion.final_summary();
}
