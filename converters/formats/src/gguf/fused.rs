//! Matrices that other programs have fused: `attn_qkv` for queries, keys and values, `ffn_gate_up_exps` for
//! the gate and up matrices of experts. llama.cpp opens a file either way, whatever the architecture.

use registry::weight_map::{SplitSizes, WeightStep};

use super::{GgufFile, GgufTensor, Metadata, MetadataValue};

/// Tensor that is a part of another.
pub struct FusedPart<'f> {
    /// Fused tensor of the file.
    pub whole: &'f GgufTensor,
    /// Step that splits the fused tensor.
    pub step: WeightStep,
    /// Index of this part.
    pub part: usize,
    /// Shape of this part.
    pub shape: Vec<usize>,
}

/// Fused tensors.
pub struct FusedTensor {
    /// Name of the fused tensor in the file.
    pub whole: String,
    /// Names of its parts, in order.
    pub parts: Vec<String>,
    /// Axis along which the parts are concatenated.
    pub axis: usize,
}

const EXPERTS: (&str, [&str; 2]) = ("ffn_gate_up_exps", ["ffn_gate_exps", "ffn_up_exps"]);
const ATTENTION: (&str, [&str; 3]) = ("attn_qkv", ["attn_q", "attn_k", "attn_v"]);

impl GgufFile {
    /// Returns the fused tensor that contains a tensor, if the file has it only in fused form.
    pub fn cut(&self, name: &str) -> Option<FusedPart<'_>> {
        let (layer, suffix) = name.strip_prefix("blk.")?.split_once('.')?;
        let (stem, end) = suffix.split_once('.')?;
        let (fused, axis, sizes, part) =
            if let Some(part) = EXPERTS.1.iter().position(|known| *known == stem) {
                let fused = self.info(&format!("blk.{layer}.{}.{end}", EXPERTS.0))?;
                let axis = 1;
                let rows = *fused.shape.get(axis)?;
                (fused, axis, (rows % 2 == 0).then(|| vec![rows / 2; 2])?, part)
            } else {
                let part = ATTENTION.1.iter().position(|known| *known == stem)?;
                let fused = self.info(&format!("blk.{layer}.{}.{end}", ATTENTION.0))?;
                let [keys, values] = self.sizes(layer.parse().ok()?)?;
                let queries = fused.shape.first()?.checked_sub(keys.checked_add(values)?)?;
                (fused, 0, vec![queries, keys, values], part)
            };
        let mut shape = fused.shape.clone();
        *shape.get_mut(axis)? = *sizes.get(part)?;
        let step = WeightStep::Split { axis, sizes: SplitSizes::Each(sizes) };
        Some(FusedPart { whole: fused, step, part, shape })
    }

    /// Returns the fused tensors whose parts are all missing from the file.
    pub fn fused(&self) -> Vec<FusedTensor> {
        let all = self.tensors().iter().filter_map(|info| {
            let parts: Vec<String> =
                self.parts(&info.name).into_iter().map(|(name, _)| name).collect();
            let axis = usize::from(info.name.contains(EXPERTS.0));
            let is_complete =
                parts.len() == if axis == 1 { EXPERTS.1.len() } else { ATTENTION.1.len() };
            is_complete.then(|| FusedTensor { whole: info.name.clone(), parts, axis })
        });
        all.collect()
    }

    /// Returns the names and shapes of a tensor's parts, if it may be a fused tensor.
    pub fn parts(&self, name: &str) -> Vec<(String, Vec<usize>)> {
        let split = name.strip_prefix("blk.").and_then(|suffix| suffix.split_once('.'));
        let Some((layer, (stem, end))) =
            split.and_then(|(layer, suffix)| Some((layer, suffix.split_once('.')?)))
        else {
            return Vec::new();
        };
        let stems: &[&str] = match stem {
            _ if stem == EXPERTS.0 => &EXPERTS.1,
            _ if stem == ATTENTION.0 => &ATTENTION.1,
            _ => return Vec::new(),
        };
        let names = stems.iter().map(|stem| format!("blk.{layer}.{stem}.{end}"));
        let missing = names.filter(|name| self.info(name).is_none());
        missing.filter_map(|name| self.cut(&name).map(|cut| (name, cut.shape))).collect()
    }

    /// Returns the sizes of keys and values of a layer.
    fn sizes(&self, layer: usize) -> Option<[usize; 2]> {
        let keys = self.metadata();
        let arch = keys.str("general.architecture").ok()??;
        let heads = attention_value(keys, arch, "head_count", layer)?;
        let groups = attention_value(keys, arch, "head_count_kv", layer).unwrap_or(heads);
        let width = keys.u32(&format!("{arch}.embedding_length")).ok()?? as usize;
        let head = width.checked_div(heads);
        let key = attention_value(keys, arch, "key_length", layer).or(head)?;
        let value = attention_value(keys, arch, "value_length", layer).or(head)?;
        Some([groups.checked_mul(key)?, groups.checked_mul(value)?])
    }
}

/// Returns the value of an attention key for a layer: its element of a list, or the one value of all layers.
fn attention_value(keys: &Metadata, arch: &str, name: &str, layer: usize) -> Option<usize> {
    match keys.get(&format!("{arch}.attention.{name}"))? {
        MetadataValue::Array(array) => usize::try_from(array.integers()?.get(layer).copied()?).ok(),
        one => usize::try_from(one.integer()?).ok(),
    }
}
