use super::*;
use crate::limits::LARGE_FRAME_BYTES;

fn draft() -> Draft {
    let text = r#"{"kind":"K","apiVersion":"v1","metadata":{"name":"a","resourceVersion":""}}"#;
    Draft {
        key: Key::namespaced("n", "a"),
        bytes: Bytes::from_static(text.as_bytes()),
        revision_offset: text.find(r#""}}"#).unwrap(),
        item_offset: text.find(r#""metadata""#).unwrap(),
        labels: Pairs::from_iter([("b", "2"), ("a", "1")]),
        fields: Pairs::default(),
    }
}

#[test]
fn object_bytes_contain_the_revision() {
    let object = Object::new(draft(), Revision(42));
    assert!(object.bytes.ends_with(br#""resourceVersion":"42"}}"#));
    let deleted = object.at_revision(Revision(1_000));
    assert!(deleted.bytes.ends_with(br#""resourceVersion":"1000"}}"#));
    assert_eq!(deleted.item(), Bytes::from_static(br#""metadata":{"name":"a","resourceVersion":"1000"}}"#));
}

#[test]
fn draft_of_an_object_is_the_one_that_it_was_made_from() {
    assert_eq!(Object::new(draft(), Revision(42)).to_draft(), draft());
}

#[test]
fn restored_refuses_bytes_with_another_revision() {
    let written = Object::new(draft(), Revision(42));
    let read = Draft { bytes: written.bytes, ..draft() };
    assert!(Object::restored(read.clone(), Revision(42)).is_some());
    assert!(Object::restored(read, Revision(43)).is_none());
}

#[test]
fn unreadable_object_stays_unreadable_at_another_revision() {
    let reason = UnreadableReason::Undecryptable("no key".to_owned());
    let object = Object::unreadable(Key::cluster("a"), Revision(2), reason.clone());
    let deleted = object.at_revision(Revision(3));
    assert!(!deleted.is_readable() && deleted.revision == Revision(3));
    assert_eq!(deleted.unreadable_reason(), Some(&reason));
    assert!(Object::new(draft(), Revision(2)).is_readable());
}

#[test]
fn object_remembers_what_encrypted_it() {
    let object = Object::new(draft(), Revision(2));
    assert_eq!(object.encryption_key_id(), None);
    let encrypted = object.with_encryption(Some(EncryptionKeyId(7))).at_revision(Revision(3));
    assert_eq!(encrypted.encryption_key_id(), Some(EncryptionKeyId(7)));
}

#[test]
fn object_with_its_counters_fits_160_bytes() {
    // The next size that the allocator has is a fifth larger.
    assert!(size_of::<Object>() + 2 * size_of::<usize>() <= 160, "{}", size_of::<Object>());
}

#[test]
fn hidden_key_is_in_a_range_of_its_own() {
    let hidden = Key::hidden(&[0xa0; HIDDEN_KEY_BYTES]);
    assert_eq!(hidden.as_str(), format!("/{}", "a0".repeat(HIDDEN_KEY_BYTES)));
    assert!(hidden.is_hidden() && Key::HIDDEN.contains(&hidden.as_str()));
    for real in ["0", "!", "-/x", "zz/a0", "~"].map(Key::from_path) {
        assert!(!real.is_hidden() && !Key::HIDDEN.contains(&real.as_str()), "{real:?}");
    }
}

#[test]
fn keys_sort_by_bytes_and_split_into_namespace_and_name() {
    let key = Key::namespaced("kube-system", "a:b");
    assert_eq!((key.namespace(), key.name()), ("kube-system", "a:b"));
    assert_eq!((Key::cluster("n").namespace(), Key::cluster("n").name()), ("", "n"));
    assert!(Key::namespaced("a-b", "x") < Key::namespaced("a", "x"));
}

#[test]
fn object_has_the_bytes_of_its_draft_at_any_revision() {
    for revision in [0, 7, 42, u64::MAX] {
        let object = Object::new(draft(), Revision(revision));
        assert!(object.has_bytes_of(&draft()) && object.has_bytes_of(&object.to_draft()));
        let text = String::from_utf8(draft().bytes.to_vec()).unwrap();
        for (old, new) in [("\"a\"", "\"b\""), ("\"a\"", "\"ab\""), ("}}", "}}}"), ("\"K\"", "\"L\"")] {
            let bytes = Bytes::from(text.replacen(old, new, 1));
            assert!(!object.has_bytes_of(&Draft { bytes, ..draft() }), "{old} {new}");
        }
    }
}

#[test]
fn variant_is_encoded_once() {
    let object = Object::new(draft(), Revision(2));
    let make = |_: &Object| Ok::<_, ()>(Bytes::from_static(b"x"));
    let all = |_: Variant| true;
    assert_eq!(object.variant(None, Variant(1), all, make), Ok(Bytes::from_static(b"x")));
    assert_eq!(object.variant(None, Variant(1), all, |_| Err(())), Ok(Bytes::from_static(b"x")));
    assert_eq!(object.variant(None, Variant(2), all, |_| Err(())), Err(()));
}

#[test]
fn variants_are_cached_within_the_budget_and_freed_with_their_object() {
    let budget = MemoryBudget::standalone(2);
    let (first, second) = (Object::new(draft(), Revision(2)), Object::new(draft(), Revision(3)));
    let make = |_: &Object| Ok::<_, ()>(Bytes::from_static(b"xy"));
    let all = |_: Variant| true;
    assert!(first.variant(Some(&budget), Variant(1), all, make).is_ok());
    assert!(second.variant(Some(&budget), Variant(1), all, make).is_ok(), "it is made, but not cached");
    assert_eq!(second.variant(Some(&budget), Variant(1), all, |_| Err(())), Err(()));
    drop(first);
    assert_eq!(budget.bytes(), 0);
    assert!(second.variant(Some(&budget), Variant(1), all, make).is_ok());
    assert!(second.variant(Some(&budget), Variant(1), all, |_| Err(())).is_ok());
}

#[test]
fn large_frame_is_shared_while_it_is_held() {
    let object = Object::new(draft(), Revision(2));
    let make = || Ok::<_, ()>(Bytes::from(vec![b'x'; LARGE_FRAME_BYTES]));
    let first = object.frame(Variant(1), make).unwrap();
    let second = object.frame(Variant(1), || Err(())).expect("it is made once");
    assert!(
        matches!((&first, &second), (Frame::Large(first), Frame::Large(second)) if Arc::ptr_eq(first, second))
    );
    assert_eq!(object.cached_variant(Variant(1)), None, "frames and cached variants are numbered separately");
    assert!(object.frame(Variant(2), || Err(())).is_err());
    drop(first);
    assert!(object.frame(Variant(1), || Err(())).is_ok());
    drop(second);
    assert!(object.frame(Variant(1), || Err(())).is_err(), "it was dropped with its last holder");
}

#[test]
fn variants_of_changed_definitions_are_evicted_first() {
    let object = Object::new(draft(), Revision(2));
    let make = |_: &Object| Ok::<_, ()>(Bytes::from_static(b"x"));
    let count = u32::try_from(MAX_CACHED_VARIANTS).unwrap();
    for generation in 0..5 {
        let living = |variant: Variant| variant.0 / count == generation;
        for form in generation * count..(generation + 1) * count {
            assert!(object.variant(None, Variant(form), living, make).is_ok());
        }
        for form in generation * count..(generation + 1) * count {
            assert!(object.variant(None, Variant(form), living, |_| Err(())).is_ok(), "{form} is kept");
        }
    }
}
