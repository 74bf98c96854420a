use std::collections::{BTreeMap, BTreeSet};

use crate::gguf::config::KeyTree;
use crate::library::Library;
use crate::scalar::Scalar;

#[test]
fn a_value_may_follow_from_others() {
    let mut tree = KeyTree::default();
    tree.add("embedding_length", Scalar::Int(64));
    tree.add("attention.head_count", Scalar::Int(4));
    tree.add("block_count", Scalar::Int(2));
    let header = crate::gguf::FileMetadata {
        keys: tree.into_config("t"),
        tensors: BTreeMap::new(),
        companions: BTreeSet::new(),
    };
    let library = Library::builtin();
    let absent = library.names().find_map(|name| {
        let absent = library.load(name, &[]).unwrap().gguf.map(|gguf| gguf.absent);
        absent.filter(|absent| absent.contains_key("attention.key_length"))
    });
    let read = super::with_absent_keys(&absent.unwrap(), &header);
    let keys = &read.header.keys;
    assert_eq!(keys.peek("attention.key_length"), Some(&Scalar::Int(16)));
    assert_eq!(keys.peek("rope.dimension_count"), Some(&Scalar::Int(16)));
    assert_eq!(keys.peek("attention.head_count_kv"), Some(&Scalar::Int(4)));
    assert_eq!(keys.peek("rope.scaling.factor"), None);
    assert_eq!(read.missing_reason("context_length"), Some("llama.cpp needs it"));
    assert_eq!(read.missing_reason("vocab_size"), None);
    assert!(read.missing_reason("unheard").is_some());
}
