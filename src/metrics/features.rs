//! Metrics of feature gates. They never change while a server runs, so their lines are written when scraped.

/// The name of a gate, its stage as the reference writes it, and whether it is enabled.
pub type Enabled = (&'static str, &'static str, bool);

pub(super) const NAME: &str = "kubernetes_feature_enabled";

/// Writes one line for each gate.
pub(super) fn write(features: &[Enabled], text: &mut Vec<u8>) {
    if features.is_empty() {
        return;
    }
    text.extend(
        format!(
            "# HELP {NAME} [BETA] Whether a feature is enabled, by name and stage.\n# TYPE {NAME} gauge\n"
        )
        .bytes(),
    );
    for (name, stage, is_enabled) in features {
        text.extend(
            format!("{NAME}{{name=\"{name}\",stage=\"{stage}\"}} {}\n", u8::from(*is_enabled)).bytes(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_gates_are_written_as_gauges_with_stage() {
        let mut text = Vec::new();
        write(&[], &mut text);
        assert!(text.is_empty());
        write(&[("A", "ALPHA", true), ("B", "", false)], &mut text);
        let text = String::from_utf8(text).unwrap();
        assert!(text.ends_with(
            "gauge\nkubernetes_feature_enabled{name=\"A\",stage=\"ALPHA\"} 1\nkubernetes_feature_enabled{name=\"B\",stage=\"\"} 0\n"
        ));
    }
}
