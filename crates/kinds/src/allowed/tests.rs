//! Validation uses the constants instead of repeating lists of the table.

use std::collections::BTreeSet;
use std::path::Path;

use pilothouse_apimachinery::schema::builtin;
use pilothouse_apimachinery::schema::table::parse;
use pilothouse_apimachinery::testing::each_source;

use super::*;

#[test]
fn constants_keep_the_order_of_the_table() {
    assert_eq!(core_v1::PodSpec::RESTART_POLICY, ["Always", "OnFailure", "Never"]);
    assert_eq!(core_v1::HostPathVolumeSource::TYPE[..2], ["", "BlockDevice"]);
}

#[test]
fn source_files_do_not_repeat_enum_lists() {
    let facts: Vec<_> = builtin::FILES.iter().map(|(_, text)| parse(text).unwrap()).collect();
    let fields = facts.iter().flat_map(|facts| &facts.types).flat_map(|fact| &fact.fields);
    let lists: BTreeSet<Vec<String>> = fields
        .flat_map(|field| [field.values.clone(), field.item_values.clone()])
        .filter(|list| list.len() > 1)
        .collect();
    let mut repeated = Vec::new();
    each_source(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut |path, text| {
        for list in literal_lists(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()) {
            if lists.contains(&list) {
                repeated.push(format!("{}: {list:?}", path.display()));
            }
        }
    });
    assert_eq!(repeated, Vec::<String>::new(), "name the constant of the table instead");
}

/// The list literals of only strings in a source file, each sorted.
fn literal_lists(source: &str) -> Vec<Vec<String>> {
    let inside = source.split('[').skip(1).filter_map(|rest| rest.split_once(']')).map(|(inside, _)| inside);
    let texts = inside.filter_map(|inside| {
        let items = inside.trim().trim_end_matches(',').split(',').map(str::trim);
        let text = |item: &str| Some(item.strip_prefix('"')?.strip_suffix('"')?.to_owned());
        let mut list = items.map(text).collect::<Option<Vec<_>>>()?;
        list.sort_unstable();
        Some(list)
    });
    texts.collect()
}
