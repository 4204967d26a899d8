//! Reads configuration files with a kind and version.

use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::value::Value;

/// Parses a text of at most `max_bytes` bytes, whose object must have this kind and one of these versions.
pub(super) fn read(text: &[u8], max_bytes: usize, kind: &str, versions: &[&str]) -> Result<Value, String> {
    if text.len() > max_bytes {
        return Err(format!("more than {max_bytes} bytes"));
    }
    let file = match yaml::read_strict(text)? {
        (_, Some(repeated)) => return Err(repeated),
        (value @ Value::Object(_), None) => value,
        _ => return Err("it must be an object".to_owned()),
    };
    let (actual_kind, version) = (file.str("kind"), file.str("apiVersion"));
    if actual_kind == kind && versions.contains(&version) {
        return Ok(file);
    }
    let latest = versions.first().copied().unwrap_or_default();
    Err(format!("no kind {actual_kind:?} is known in version {version:?}: an {kind} of {latest} is needed"))
}
