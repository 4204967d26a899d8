//! The keys of the plugin, in a file.

use std::fs;
use std::io;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::random;
use crate::secret_key::SecretKey;

/// Keys by id. The last one encrypts. In the file each has a line: its id, a space, and the key in base64.
pub struct KeyFile {
    path: Option<PathBuf>,
    keys: Vec<(String, SecretKey)>,
}

impl KeyFile {
    /// Keys that are not written anywhere, with one key.
    pub fn in_memory(key_id: &str) -> KeyFile {
        let mut file = KeyFile { path: None, keys: Vec::new() };
        file.set_current(key_id).unwrap();
        file
    }

    /// The keys in a file, which may not exist yet. A key with this id is added if it is new, and encrypts then; otherwise the last
    /// one goes on to, so that a plugin that is started again has the key that it had.
    pub fn open(path: PathBuf, key_id: &str) -> io::Result<KeyFile> {
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the state file is malformed");
        let key = |line: &str| {
            let (id, key) = line.split_once(' ')?;
            Some((id.to_owned(), SecretKey::new(STANDARD.decode(key).ok()?)))
        };
        let keys: Option<Vec<_>> = text.lines().map(key).collect();
        let mut file = KeyFile { path: Some(path), keys: keys.ok_or_else(malformed)? };
        if file.get(key_id).is_none() {
            file.set_current(key_id)?;
        }
        Ok(file)
    }

    /// Makes a key the one that encrypts, and makes it if it does not exist.
    pub fn set_current(&mut self, key_id: &str) -> io::Result<()> {
        let position = self.keys.iter().position(|(id, _)| id == key_id);
        let key = match position {
            Some(position) => self.keys.remove(position),
            None => (key_id.to_owned(), random::key(32).map_err(io::Error::other)?),
        };
        self.keys.push(key);
        let Some(path) = &self.path else { return Ok(()) };
        let line = |(id, key): &(String, SecretKey)| format!("{id} {}\n", STANDARD.encode(key.bytes()));
        // Replaced at once, so that it is whole whenever the plugin is killed.
        let new = path.with_extension("new");
        fs::write(&new, self.keys.iter().map(line).collect::<String>())?;
        fs::rename(new, path)
    }

    /// The id and the key that encrypts.
    pub fn current(&self) -> Option<(&str, &SecretKey)> {
        self.keys.last().map(|(id, key)| (id.as_str(), key))
    }

    /// A key by its id.
    pub fn get(&self, key_id: &str) -> Option<&SecretKey> {
        self.keys.iter().find(|(id, _)| id == key_id).map(|(_, key)| key)
    }

    /// All keys, the current one first.
    pub fn all(&self) -> impl Iterator<Item = &SecretKey> {
        self.keys.iter().rev().map(|(_, key)| key)
    }

    /// The number of keys.
    pub fn count(&self) -> usize {
        self.keys.len()
    }
}
