//! Reads configuration files with a kind and version.

use pilothouse_apimachinery::document;
use pilothouse_apimachinery::value::Value;

/// Parses a text of at most `max_bytes` bytes, whose object must have this kind and one of these versions.
pub(super) fn read(text: &[u8], max_bytes: usize, kind: &str, versions: &[&str]) -> Result<Value, String> {
    if text.len() > max_bytes {
        return Err(format!("more than {max_bytes} bytes"));
    }
    let file = document::parse(text)?;
    document::check_kind(&file, kind, versions)?;
    Ok(file)
}
