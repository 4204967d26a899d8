//! Tables with all words, with unknown ones, and the embedded ones.

use super::*;
use crate::schema::builtin;

const SMALL: &str = r#"package k8s.io.api.apps.v1
group apps version v1

resource things Thing namespaced singular=thing short=th,tg categories=all verbs=get,create storage=/v1 introduced=1.9 deprecated=1.33 replacement=x/v1.Y
  sub scale autoscaling/v1.Scale get,patch
  sub status Thing all
  col Name string/name
  col "Last Seen" string priority=1 doc=core/v1.Event.lastTimestamp
  col Ready string -- Whether it is ready, and since when.

type Thing object
  1 metadata meta/v1.ObjectMeta
  2 spec ThingSpec* req list=map(a,b) patch=merge,retainKeys(name)
  3 inline core/v1.Other
  4 mode string emit fill="a\u0020b" enum="",A
  5 tags {[string]} fill?={} default=1 map=atomic

wrapper Words [string]
"#;

#[test]
fn all_words_of_the_table_are_parsed() {
    let facts = parse(SMALL).unwrap();
    let thing = &facts.resources[0];
    assert_eq!(thing.storage, Some((String::new(), "v1".to_owned())));
    assert_eq!((thing.introduced, thing.deprecated), (Some((1, 9)), Some((1, 33))));
    assert_eq!(thing.verbs, ["create", "get"]);
    assert_eq!((thing.subs[0].group.as_str(), thing.subs[0].kind.as_str()), ("autoscaling", "Scale"));
    assert_eq!((thing.subs[1].group.as_str(), thing.subs[1].verbs.len()), ("apps", 8));
    assert_eq!((thing.columns[1].name.as_str(), thing.columns[1].priority), ("Last Seen", 1));
    assert_eq!(thing.columns[1].field, Some(("core/v1.Event".to_owned(), "lastTimestamp".to_owned())));
    assert_eq!(thing.columns[2].text, "Whether it is ready, and since when.");
    let fields = &facts.types[0].fields;
    assert_eq!(fields[1].list, ListFact::Map(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(fields[1].patch.as_ref().and_then(|patch| patch.key.as_deref()), Some("name"));
    assert!(fields[1].pointer && fields[1].required);
    assert_eq!(fields[2].name, "");
    assert_eq!(fields[3].values, ["", "A"]);
    assert_eq!(fields[4].shape.to_string(), "{[string]}");
    assert_eq!(fields[4].fill, FillFact::Sometimes("{}".to_owned()));
    assert!(facts.types[1].wraps.is_some());
}

#[test]
fn unknown_word_is_an_error_with_its_line() {
    let error = parse(&SMALL.replace("emit", "emti")).unwrap_err();
    assert_eq!((error.line, error.message.as_str()), (15, "unknown word \"emti\""));
    for (word, invalid) in
        [("priority=1", "priority=high"), ("priority=1", "prio=1"), ("doc=core/v1.Event.", "doc=")]
    {
        assert_eq!(parse(&SMALL.replace(word, invalid)).unwrap_err().line, 8, "{invalid}");
    }
    for invalid in ["min=x", "maxlen=-1", "format=nope", "min"] {
        assert!(parse(&SMALL.replace("emit", invalid)).is_err(), "{invalid}");
    }
    assert!(parse("group apps version v1").is_err());
}

#[test]
fn builtin_files_are_complete() {
    let all: Vec<Facts> = builtin::FILES
        .iter()
        .map(|(name, text)| parse(text).unwrap_or_else(|error| panic!("{name}: {error}")))
        .collect();
    let served = all.iter().filter(|facts| facts.served);
    assert_eq!(served.clone().count(), 35);
    assert_eq!(served.clone().map(|facts| facts.resources.len()).sum::<usize>(), 88);
    let subs = served.flat_map(|facts| &facts.resources).map(|resource| resource.subs.len());
    assert_eq!(subs.sum::<usize>(), 51);
}
