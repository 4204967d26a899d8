//! Reads configuration files with a kind and version.

use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::value::Value;

/// The object in a text of at most `most` bytes, which must have this kind and one of these versions.
pub(super) fn read(text: &[u8], most: usize, kind: &str, versions: &[&str]) -> Result<Value, String> {
    if text.len() > most {
        return Err(format!("more than {most} bytes"));
    }
    let file = match yaml::read_strict(text)? {
        (_, Some(repeated)) => return Err(repeated),
        (value @ Value::Object(_), None) => value,
        _ => return Err("it must be an object".to_owned()),
    };
    let (found, version) = (file.str("kind"), file.str("apiVersion"));
    if found == kind && versions.contains(&version) {
        return Ok(file);
    }
    let known = versions.first().copied().unwrap_or_default();
    Err(format!("no kind {found:?} is known in version {version:?}: an {kind} of {known} is needed"))
}
