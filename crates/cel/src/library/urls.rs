//! URL functions.

use std::sync::Arc;

use super::context::CallContext;
use crate::value::{Fault, Key, Map, Outcome, Text, Url, Val};

/// `url('https://a/b')` and its member functions.
pub fn run<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    match (name, args) {
        ("url", [Val::String(text)]) => Url::parse(text)
            .map(|url| Val::Url(Arc::new(url)))
            .map_err(|error| Fault::error(format!("URL parse error during conversion from string: {error}"))),
        ("isURL", [Val::String(text)]) => Ok(Val::Bool(Url::parse(text).is_ok())),
        (name, [Val::Url(url)]) => Ok(Val::from(match name {
            "getScheme" => url.scheme.clone(),
            "getHost" => url.host.clone(),
            "getHostname" => url.hostname().to_owned(),
            "getPort" => url.port().to_owned(),
            "getEscapedPath" => url.path.clone(),
            "getQuery" => {
                let text = |text: String| Text::Owned(text.into());
                let entry = |(key, values): (String, Vec<String>)| {
                    let values: Vec<Val<'v>> = values.into_iter().map(Val::from).collect();
                    let key = text(key);
                    (Key::String(key.clone()), (Val::String(key), Val::from(values)))
                };
                return Ok(Val::Map(Map::Computed(Arc::new(
                    url.query_parameters().into_iter().map(entry).collect(),
                ))));
            }
            _ => return Err(Fault::no_overload()),
        })),
        _ => Err(Fault::no_overload()),
    }
}
