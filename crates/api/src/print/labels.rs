//! Labels and selectors as text.

use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, texts};

/// Labels, or a selector that is a plain map of labels.
pub fn labels(labels: Option<&Value>) -> String {
    let entries = labels.and_then(Value::fields).into_iter().flatten();
    let pairs: Vec<String> =
        entries.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    if pairs.is_empty() { NONE.to_owned() } else { pairs.join(",") }
}

/// A label selector; `<none>` if it is empty.
pub fn selector(selector: Option<&Value>) -> String {
    match label_selector::to_text(selector) {
        None => "<error>".to_owned(),
        Some(text) if text.is_empty() => NONE.to_owned(),
        Some(text) => text,
    }
}

/// A label selector in Go's format of structs.
pub fn selector_in_full(selector: &Value) -> String {
    let match_labels: String = selector
        .get("matchLabels")
        .and_then(Value::fields)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or_default()))
        .collect();
    let expressions: String = selector
        .get("matchExpressions")
        .map(Value::items)
        .unwrap_or_default()
        .iter()
        .map(|expression| {
            let values: Vec<&str> =
                texts(expression.get("values").map(Value::items).unwrap_or_default()).collect();
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
                expression.str("key"),
                expression.str("operator"),
                values.join(" ")
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{match_labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::testing::value;

    #[test]
    fn selector_cells_are_text() {
        for (json, cell) in [
            ("{}", "<none>"),
            (r#"{"matchLabels":{"b":"1","a":""}}"#, "a=,b=1"),
            (
                r#"{"matchLabels":{"m":"1"},"matchExpressions":[
                    {"key":"z","operator":"In","values":["y","x","y"]},{"key":"a","operator":"NotIn","values":["x"]},
                    {"key":"n","operator":"Exists"},{"key":"c","operator":"DoesNotExist"}]}"#,
                "a notin (x),!c,m=1,n,z in (x,y)",
            ),
            (r#"{"matchExpressions":[{"key":"a","operator":"In"}]}"#, "<error>"),
            (r#"{"matchExpressions":[{"key":"a","operator":"Near"}]}"#, "<error>"),
            (r#"{"matchLabels":{"a b":"c"}}"#, "<error>"),
        ] {
            assert_eq!(selector(Some(&value(json))), cell, "{json}");
        }
        assert_eq!(selector(None), "<none>");
        assert_eq!(labels(Some(&value(r#"{"b":"1","a":"2"}"#))), "a=2,b=1");
        assert_eq!(labels(None), "<none>");
    }
}
