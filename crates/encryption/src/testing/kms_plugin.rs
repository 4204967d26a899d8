//! A KMS plugin that speaks both versions of the API.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pilothouse_plugins::Code;
use pilothouse_plugins::testing::{Call, PluginServer, Reply, Status};
use pilothouse_types::lock::Lock;

use super::key_file::KeyFile;
use crate::ciphers::AesGcm;
use crate::kms::messages::{v1beta1, v2};

/// The annotation of encrypted data keys, which must come back when they are decrypted.
const ANNOTATION: &str = "plugin.example.com";
const ANNOTATION_VALUE: &[u8] = b"pilothouse";

/// The calls that a plugin has answered, by method.
#[derive(Debug, Default)]
pub struct Calls {
    /// Status and Version.
    pub status: AtomicUsize,
    /// Encrypt.
    pub encrypt: AtomicUsize,
    /// Decrypt.
    pub decrypt: AtomicUsize,
}

/// What a plugin does and has done.
pub struct PluginState {
    keys: Lock<KeyFile>,
    status: Lock<v2::StatusResponse>,
    /// The status of all calls but Status, if they fail.
    failure: Lock<Option<Code>>,
    /// The key id of Encrypt, if it is another than that of Status.
    encrypt_key_id: Lock<Option<String>>,
    /// What was called.
    pub calls: Calls,
    uids: Lock<Vec<String>>,
}

impl PluginState {
    /// A plugin that works.
    pub fn new(keys: KeyFile) -> PluginState {
        let key_id = keys.current().map(|(id, _)| id.to_owned()).unwrap_or_default();
        let (version, healthz) = ("v2".to_owned(), "ok".to_owned());
        PluginState {
            keys: Lock::new(keys),
            status: Lock::new(v2::StatusResponse { version, healthz, key_id }),
            failure: Lock::new(None),
            encrypt_key_id: Lock::new(None),
            calls: Calls::default(),
            uids: Lock::default(),
        }
    }

    /// Encrypts with another key from now on, and makes it if it is new.
    pub fn rotate(&self, key_id: &str) -> io::Result<()> {
        self.keys.lock().set_current(key_id)?;
        key_id.clone_into(&mut self.status.lock().key_id);
        Ok(())
    }

    /// The number of keys.
    pub fn key_count(&self) -> usize {
        self.keys.lock().count()
    }

    /// Changes what Status returns.
    pub fn change_status(&self, change: impl FnOnce(&mut v2::StatusResponse)) {
        change(&mut self.status.lock());
    }

    /// Lets all calls but Status fail, or work again.
    pub fn fail_with(&self, code: Option<Code>) {
        *self.failure.lock() = code;
    }

    /// Lets Encrypt return another key id than Status.
    pub fn set_encrypt_key_id(&self, key_id: Option<&str>) {
        *self.encrypt_key_id.lock() = key_id.map(str::to_owned);
    }

    /// The ids of the calls of version 2.
    pub fn uids(&self) -> Vec<String> {
        self.uids.lock().clone()
    }

    /// Encrypts a data key with the current key.
    pub fn encrypt_for_tests(&self, plain: &[u8]) -> Vec<u8> {
        self.encrypt(plain).expect("a plugin that works").1
    }

    fn check_failure(&self) -> Result<(), Status> {
        match *self.failure.lock() {
            None => Ok(()),
            Some(code) => Err(Status::new(code, "the plugin was told to fail")),
        }
    }

    fn encrypt(&self, plain: &[u8]) -> Result<(String, Vec<u8>), Status> {
        self.calls.encrypt.fetch_add(1, Ordering::SeqCst);
        self.check_failure()?;
        let keys = self.keys.lock();
        let (id, key) = keys.current().ok_or_else(|| Status::internal("there is no key"))?;
        let mut out = Vec::new();
        let cipher = AesGcm::new(key.clone()).map_err(|error| Status::internal(error.to_string()))?;
        cipher.encrypt(plain, b"", &mut out).map_err(|error| Status::internal(error.to_string()))?;
        Ok((id.to_owned(), out))
    }

    /// Decrypts with the key of this id, or with whichever fits.
    fn decrypt(&self, ciphertext: &[u8], key_id: Option<&str>) -> Result<Vec<u8>, Status> {
        self.calls.decrypt.fetch_add(1, Ordering::SeqCst);
        self.check_failure()?;
        let keys = self.keys.lock();
        let open = |key: &crate::secret_key::SecretKey| {
            AesGcm::new(key.clone()).and_then(|cipher| cipher.decrypt(ciphertext, b"")).ok()
        };
        let plain = match key_id {
            Some(key_id) => open(keys.get(key_id).ok_or_else(|| Status::not_found("there is no such key"))?),
            None => keys.all().find_map(open),
        };
        plain.ok_or_else(|| Status::invalid_argument("the data key was encrypted with another key"))
    }

    fn status_v2(&self) -> v2::StatusResponse {
        self.calls.status.fetch_add(1, Ordering::SeqCst);
        self.status.lock().clone()
    }

    fn encrypt_v2(&self, request: v2::EncryptRequest) -> Result<v2::EncryptResponse, Status> {
        self.uids.lock().push(request.uid);
        let (key_id, ciphertext) = self.encrypt(&request.plaintext)?;
        let key_id = self.encrypt_key_id.lock().clone().unwrap_or(key_id);
        let annotations = BTreeMap::from([(ANNOTATION.to_owned(), ANNOTATION_VALUE.to_vec())]);
        Ok(v2::EncryptResponse { ciphertext, key_id, annotations })
    }

    fn decrypt_v2(&self, request: v2::DecryptRequest) -> Result<v2::DecryptResponse, Status> {
        self.uids.lock().push(request.uid);
        let plaintext = self.decrypt(&request.ciphertext, Some(&request.key_id))?;
        if request.annotations.get(ANNOTATION).map(Vec::as_slice) != Some(ANNOTATION_VALUE) {
            return Err(Status::invalid_argument("the annotation is missing"));
        }
        Ok(v2::DecryptResponse { plaintext })
    }

    fn version_v1(&self) -> v1beta1::VersionResponse {
        self.calls.status.fetch_add(1, Ordering::SeqCst);
        v1beta1::VersionResponse {
            version: v1beta1::VERSION.to_owned(),
            runtime_name: "pilothouse".to_owned(),
            runtime_version: "0.1.0".to_owned(),
        }
    }
}

/// A running plugin. It stops when it is dropped.
pub struct KmsPlugin {
    /// What it does.
    pub state: Arc<PluginState>,
    endpoint: String,
    _server: PluginServer,
}

impl KmsPlugin {
    /// Starts a plugin on a socket with this path. A file that is there already is replaced.
    pub fn start(path: &Path, state: Arc<PluginState>) -> io::Result<KmsPlugin> {
        let served = state.clone();
        let server = PluginServer::start(path, move |call| answer(served.clone(), call))?;
        Ok(KmsPlugin { state, endpoint: format!("unix://{}", path.display()), _server: server })
    }

    /// Starts a plugin on an abstract socket.
    pub fn start_abstract(name: &str, state: Arc<PluginState>) -> io::Result<KmsPlugin> {
        let served = state.clone();
        let server = PluginServer::start_abstract(name, move |call| answer(served.clone(), call))?;
        Ok(KmsPlugin { state, endpoint: format!("unix:///@{name}"), _server: server })
    }

    /// The endpoint for a configuration.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

async fn answer(state: Arc<PluginState>, call: Call) -> Reply {
    match call.method() {
        v2::methods::STATUS => call.answer(|_: v2::StatusRequest| Ok(state.status_v2())).await,
        v2::methods::ENCRYPT => call.answer(|message| state.encrypt_v2(message)).await,
        v2::methods::DECRYPT => call.answer(|message| state.decrypt_v2(message)).await,
        v1beta1::methods::VERSION => call.answer(|_: v1beta1::VersionRequest| Ok(state.version_v1())).await,
        v1beta1::methods::ENCRYPT => {
            let encrypt = |message: v1beta1::EncryptRequest| {
                state.encrypt(&message.plain).map(|(_, cipher)| v1beta1::EncryptResponse { cipher })
            };
            call.answer(encrypt).await
        }
        v1beta1::methods::DECRYPT => {
            let decrypt = |message: v1beta1::DecryptRequest| {
                state.decrypt(&message.cipher, None).map(|plain| v1beta1::DecryptResponse { plain })
            };
            call.answer(decrypt).await
        }
        _ => call.unimplemented(),
    }
}
