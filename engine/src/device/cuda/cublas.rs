//! Products of matrices by cuBLASLt, which is loaded when it is first used.

use std::collections::BTreeMap;
use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use registry::dtype::Dtype;

use crate::DeviceError;
use crate::device::product::{DeviceProduct, MatrixPlace, ProductSizes, WORKSPACE};

/// Most products that are kept with their algorithm.
const PLANS: usize = 1024;

/// Largest alignment of an address that the library asks about.
const ALIGNED: u64 = 256;

/// The library, opened for a GPU.
#[derive(Debug)]
pub(super) struct Cublas {
    handle: sys::cublasLtHandle_t,
    /// Memory of the device.
    workspace: u64,
    plans: BTreeMap<PlanKey, ProductPlan>,
}

/// Sizes and places that the algorithm of a product depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PlanKey {
    sizes: ProductSizes,
    /// Distances, and the alignment in place of the address: of `w`, `x` and `y`, which the library calls A, B and D.
    places: [MatrixPlace<u64>; 3],
}

/// Descriptions of a product, and its algorithm.
#[derive(Debug)]
struct ProductPlan {
    product: sys::cublasLtMatmulDesc_t,
    matrices: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

// SAFETY: the library allows calls from any thread; the owner lets one thread call at a time.
unsafe impl Send for Cublas {}

fn failed(error: CublasError) -> DeviceError {
    DeviceError(format!("cuBLASLt: {error}"))
}

/// Makes descriptions that a failure gives back.
struct Described<T: Copy>(Vec<T>, unsafe fn(T) -> Result<(), CublasError>);

impl<T: Copy> Described<T> {
    fn keep(&mut self, description: T) -> T {
        self.0.push(description);
        description
    }
}

impl<T: Copy> Drop for Described<T> {
    fn drop(&mut self) {
        for description in self.0.drain(..) {
            // SAFETY: the library made it, and nobody else gives it back.
            let _: Result<(), CublasError> = unsafe { self.1(description) };
        }
    }
}

fn number(dtype: Dtype) -> sys::cudaDataType {
    match dtype {
        Dtype::F32 => sys::cudaDataType::CUDA_R_32F,
        Dtype::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        Dtype::F16 => sys::cudaDataType::CUDA_R_16F,
    }
}

/// Returns an attribute as the library reads it.
fn bytes_of<T>(value: &T) -> (*const c_void, usize) {
    (std::ptr::from_ref(value).cast(), size_of::<T>())
}

/// Describes matrices whose rows of `width` numbers are columns to the library.
fn layout(
    dtype: Dtype,
    [batch, rows, width]: [usize; 3],
    place: MatrixPlace<u64>,
) -> Result<sys::cublasLtMatrixLayout_t, CublasError> {
    let layout =
        result::create_matrix_layout(number(dtype), width as u64, rows as u64, place.row as i64)?;
    // SAFETY: the description was made above.
    match unsafe { set_batch(layout, batch as i32, place.matrix as i64) } {
        Ok(()) => Ok(layout),
        Err(error) => {
            drop(Described(vec![layout], result::destroy_matrix_layout));
            Err(error)
        }
    }
}

/// Sets the number of matrices of a description, and the numbers from one to the next.
///
/// # Safety
/// The description is alive.
unsafe fn set_batch(
    layout: sys::cublasLtMatrixLayout_t,
    count: i32,
    step: i64,
) -> Result<(), CublasError> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;

    let (at, size) = bytes_of(&count);
    let (step_at, step_size) = bytes_of(&step);
    // SAFETY: the caller's promise, and each value has the size that is given.
    unsafe {
        let attribute = Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
        result::set_matrix_layout_attribute(layout, attribute, at, size)?;
        let attribute = Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        result::set_matrix_layout_attribute(layout, attribute, step_at, step_size)
    }
}

impl PlanKey {
    fn of(product: &DeviceProduct) -> Self {
        let DeviceProduct { sizes, x, w, y } = *product;
        Self {
            sizes,
            places: [w, x, y].map(|place: MatrixPlace<u64>| {
                let zeros = place.at.trailing_zeros().min(ALIGNED.trailing_zeros());
                MatrixPlace { at: 1 << zeros, ..place }
            }),
        }
    }

    /// Describes the product, and asks the library for an algorithm.
    fn plan(&self, handle: sys::cublasLtHandle_t) -> Result<ProductPlan, CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;

        let ProductSizes { batch, rows, inputs, outputs, by_outputs, dtype, .. } = self.sizes;
        let result_dtype = self.sizes.made;
        let [w, x, y] = self.places;
        let mut products = Described(Vec::new(), result::destroy_matmul_desc);
        let mut layouts = Described(Vec::new(), result::destroy_matrix_layout);
        let product = products.keep(result::create_matmul_desc(
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cudaDataType::CUDA_R_32F,
        )?);
        // Rows are columns to the library, so a matrix with a row for each output is turned to it.
        let turned = i32::from(by_outputs); // CUBLAS_OP_N or CUBLAS_OP_T
        let (at, size) = bytes_of(&turned);
        // SAFETY: the description was made above, and the value has the size that is given.
        unsafe {
            let attribute = Attribute::CUBLASLT_MATMUL_DESC_TRANSA;
            result::set_matmul_desc_attribute(product, attribute, at, size)?;
        }
        let weights = if by_outputs { [batch, outputs, inputs] } else { [batch, inputs, outputs] };
        let matrices = [
            layouts.keep(layout(dtype, weights, w)?),
            layouts.keep(layout(dtype, [batch, rows, inputs], x)?),
            layouts.keep(layout(result_dtype, [batch, rows, outputs], y)?),
        ];
        let algorithm = self.algorithm(handle, product, matrices)?;
        (products.0, layouts.0) = (Vec::new(), Vec::new());
        Ok(ProductPlan { product, matrices, algorithm })
    }

    /// Asks for the algorithm that the library thinks fastest, among those that keep all partial sums in f32.
    fn algorithm(
        &self,
        handle: sys::cublasLtHandle_t,
        product: sys::cublasLtMatmulDesc_t,
        [w, x, y]: [sys::cublasLtMatrixLayout_t; 3],
    ) -> Result<sys::cublasLtMatmulAlgo_t, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;

        let mut preferences = Described(Vec::new(), result::destroy_matmul_pref);
        let preference = preferences.keep(result::create_matmul_pref()?);
        // Sums of parts in the dtype of the result would round more than once.
        let sums = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        let [of_w, of_x, of_y] = self.places.map(|place| place.at as u32);
        let (at, size) = bytes_of(&WORKSPACE);
        // SAFETY: the descriptions are alive, and each value has the size that is given.
        unsafe {
            let attribute = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            result::set_matmul_pref_attribute(preference, attribute, at, size)?;
            for (attribute, value) in [
                (Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, sums),
                (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_w),
                (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_x),
                (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_y),
                (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_y),
            ] {
                let (at, size) = bytes_of(&value);
                result::set_matmul_pref_attribute(preference, attribute, at, size)?;
            }
            let best = result::get_matmul_algo_heuristic(handle, product, w, x, y, y, preference)?;
            Ok(best.algo)
        }
    }
}

impl Cublas {
    /// Loads the library. The context of the device is that of this thread, and `workspace` is [`WORKSPACE`] bytes of
    /// its memory.
    pub(super) fn open(workspace: u64) -> Result<Self, DeviceError> {
        let handle = result::create_handle().map_err(failed)?;
        Ok(Self { handle, workspace, plans: BTreeMap::new() })
    }

    /// Returns the memory of [`Cublas::open`], which its owner gives back.
    pub(super) fn workspace(&self) -> u64 {
        self.workspace
    }

    /// Returns an error that says how to get the library, unless it is there.
    pub(super) fn check() -> Result<(), DeviceError> {
        // SAFETY: looks for the library alone.
        if unsafe { sys::is_culib_present() } {
            return Ok(());
        }
        Err(DeviceError(
            "cuBLASLt (libcublasLt.so) was not found: install the CUDA toolkit, or `pip install nvidia-cublas` of the \
             driver's CUDA version and add its folder to LD_LIBRARY_PATH; or choose the option \
             `arithmetic exact`, which multiplies long prompts more slowly"
                .to_owned(),
        ))
    }

    /// Gives a product to a stream of the device.
    ///
    /// # Safety
    /// All numbers of the matrices are allocated, those of `y` are apart from the others, and the context of the device
    /// is that of this thread.
    pub(super) unsafe fn multiply(
        &mut self,
        product: &DeviceProduct,
        stream: sys::cudaStream_t,
    ) -> Result<(), DeviceError> {
        let key = PlanKey::of(product);
        if !self.plans.contains_key(&key) {
            if self.plans.len() >= PLANS {
                self.forget();
            }
            let plan = key.plan(self.handle).map_err(|error| {
                DeviceError(format!(
                    "cuBLASLt has no product of {:?} ({error}); choose the option `arithmetic exact`",
                    product.sizes
                ))
            })?;
            self.plans.insert(key, plan);
        }
        let plan = &self.plans[&key];
        let [of_w, of_x, of_y] = plan.matrices;
        let one = 1.0_f32;
        let beta = if product.sizes.adds { 1.0_f32 } else { 0.0 };
        let w = product.w.at as *mut c_void;
        let x = product.x.at as *mut c_void;
        let y = product.y.at as *mut c_void;
        // SAFETY: the plan describes matrices of these places, the caller has checked that they are allocated, and the
        // library reads the factors before it returns.
        unsafe {
            result::matmul(
                self.handle,
                plan.product,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&beta).cast(),
                w,
                of_w,
                x,
                of_x,
                y,
                of_y,
                y,
                of_y,
                &raw const plan.algorithm,
                self.workspace as *mut c_void,
                WORKSPACE,
                stream,
            )
        }
        .map_err(failed)
    }

    /// Gives all descriptions back.
    fn forget(&mut self) {
        for plan in std::mem::take(&mut self.plans).into_values() {
            drop(Described(vec![plan.product], result::destroy_matmul_desc));
            drop(Described(plan.matrices.to_vec(), result::destroy_matrix_layout));
        }
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        self.forget();
        // SAFETY: the handle is of `open`, and is given back once.
        let _: Result<(), CublasError> = unsafe { result::destroy_handle(self.handle) };
    }
}
