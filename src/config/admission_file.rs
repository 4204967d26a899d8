//! `--admission-control-config-file`: the configurations of admission plug-ins.

use std::collections::BTreeMap;
use std::path::Path;

use pilothouse_api::admission_plugins::PluginName;
use pilothouse_apimachinery::document::{self, FieldReader};
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::value::Value;

use super::ConfigError;

const KIND: &str = "AdmissionConfiguration";
const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];

/// Plug-ins whose configuration may be the whole file, as in older releases.
const LEGACY: [(&str, PluginName); 2] = [
    ("imagePolicy", PluginName::ImagePolicyWebhook),
    ("podNodeSelectorPluginConfig", PluginName::PodNodeSelector),
];

/// The configurations by plug-in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionFile(BTreeMap<String, Value>);

impl AdmissionFile {
    /// Reads the file and the files that it names; without a file there are no configurations.
    pub fn read(path: Option<&Path>) -> Result<AdmissionFile, ConfigError> {
        let Some(path) = path else { return Ok(AdmissionFile::default()) };
        let base = path.parent().unwrap_or(Path::new(""));
        parse(&load(path)?, &mut |name| load(&base.join(name))).map_err(|error| {
            ConfigError(format!("--admission-control-config-file: {}: {error}", path.display()))
        })
    }

    /// The configuration of a plug-in.
    pub fn configuration(&self, plugin: &str) -> Option<&Value> {
        self.0.get(plugin)
    }

    /// The plug-ins with a configuration.
    pub fn plugins(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

fn load(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let unreadable = |error| {
        let path = path.display();
        ConfigError(format!("unable to read admission control configuration from \"{path}\" [{error}]"))
    };
    std::fs::read(path).map_err(unreadable)
}

type Load<'a> = &'a mut dyn FnMut(&str) -> Result<Vec<u8>, ConfigError>;

fn parse(text: &[u8], load: Load<'_>) -> Result<AdmissionFile, String> {
    let file = document::parse(text)?;
    if file.str("kind").is_empty() && file.str("apiVersion").is_empty() {
        let legacy = LEGACY.iter().find(|(field, _)| file.get(field).is_some());
        let (_, plugin) = legacy.ok_or("apiVersion and kind must be set")?;
        return Ok(AdmissionFile(BTreeMap::from([(plugin.as_str().to_owned(), file)])));
    }
    document::check_kind(&file, KIND, &VERSIONS)?;
    let (mut reader, root) = (FieldReader::default(), FieldPath::root());
    reader.check_fields(&file, &root, &["apiVersion", "kind", "plugins"]);
    let mut documents = BTreeMap::new();
    for (index, plugin) in reader.list(&file, "plugins", &root).iter().enumerate() {
        let path = FieldPath::new("plugins").index(index);
        reader.check_fields(plugin, &path, &["name", "path", "configuration"]);
        let name = plugin.str("name");
        let document = match (plugin.get("configuration"), plugin.str("path")) {
            (Some(inline), _) => inline.clone(),
            (None, "") => continue,
            (None, path) => {
                let text = load(path).map_err(|error| error.to_string())?;
                document::parse(&text).map_err(|error| format!("{path}: {error}"))?
            }
        };
        // The first of two configurations of a plug-in is used, as in kube-apiserver.
        documents.entry(name.to_owned()).or_insert(document);
    }
    reader.result()?;
    Ok(AdmissionFile(documents))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AdmissionFile, String> {
        parse(text.as_bytes(), &mut |path| match path {
            "other.yaml" => Ok(b"kind: Other\n".to_vec()),
            _ => Err(ConfigError(format!("{path} is not there"))),
        })
    }

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";

    #[test]
    fn admission_file_reads_inline_and_referenced_configurations() {
        let file = read(&format!(
            "{HEAD}plugins:\n- name: A\n  configuration: {{kind: Inline}}\n- name: B\n  path: other.yaml\n- name: C\n\
             - name: A\n  path: other.yaml\n"
        ))
        .unwrap();
        assert_eq!(file.configuration("A").unwrap().str("kind"), "Inline");
        assert_eq!(file.configuration("B").unwrap().str("kind"), "Other");
        assert_eq!(file.plugins().collect::<Vec<_>>(), ["A", "B"]);
        assert_eq!(AdmissionFile::read(None), Ok(AdmissionFile::default()));
    }

    #[test]
    fn admission_file_accepts_legacy_plugin_configuration() {
        let file = read("podNodeSelectorPluginConfig: {a: b=c}\n").unwrap();
        assert_eq!(file.plugins().collect::<Vec<_>>(), ["PodNodeSelector"]);
    }

    #[test]
    fn admission_file_errors_name_the_field() {
        for (text, expected) in [
            (format!("{HEAD}plugin: []"), "unknown field \"plugin\""),
            (format!("{HEAD}plugins: [{{nam: A}}]"), "unknown field \"plugins[0].nam\""),
            (format!("{HEAD}plugins: {{}}"), "plugins: must be a list"),
            (format!("{HEAD}plugins: [1]"), "plugins[0]: must be an object"),
            (format!("{HEAD}plugins: [{{name: A, path: gone}}]"), "gone is not there"),
            ("a: b".to_owned(), "apiVersion and kind must be set"),
            ("- a".to_owned(), "it must be an object"),
        ] {
            assert_eq!(read(&text).unwrap_err(), expected, "{text}");
        }
        let other = read("apiVersion: v1\nkind: Pod\n").unwrap_err();
        assert!(other.starts_with("no kind \"Pod\" is known in version \"v1\""), "{other}");
    }

    #[test]
    fn missing_admission_file_is_named() {
        let error = AdmissionFile::read(Some(Path::new("/nowhere/at/all.yaml"))).unwrap_err().to_string();
        assert!(
            error.starts_with("unable to read admission control configuration from \"/nowhere/at/all.yaml\"")
        );
    }
}
