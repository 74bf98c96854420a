//! Shorter forms of items that every back end has.

/// Declares functions of a back end. Their bodies may use its instructions. Those after `safe` do nothing unsafe, and
/// those after `unsafe` follow pointers of their callers.
macro_rules! operations {
    (safe $(fn $name:ident ($self:ident $(, $arg:ident: $ty:ty)*) $(-> $out:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name($self $(, $arg: $ty)*) $(-> $out)? $body
    )*};
    (unsafe $(
        fn $name:ident $(<const $count:ident: $count_type:ty>)? ($self:ident $(, $arg:ident: $ty:ty)*) $(-> $out:ty)? $body:block
    )*) => {$(
        #[inline(always)]
        unsafe fn $name $(<const $count: $count_type>)? ($self $(, $arg: $ty)*) $(-> $out)? {
            // SAFETY: the token exists only where the CPU has the instructions, and the caller lets the bytes be read
            // and written.
            unsafe { $body }
        }
    )*};
    ($(fn $name:ident $(<const $count:ident: $count_type:ty>)? ($self:ident $(, $arg:ident: $ty:ty)*) $(-> $out:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name $(<const $count: $count_type>)? ($self $(, $arg: $ty)*) $(-> $out)? {
            // SAFETY: the token exists only where the CPU has the instructions. Reads and writes are of references,
            // and no longer than these.
            unsafe { $body }
        }
    )*};
}

/// Declares the operators of a vector by functions of what it holds.
macro_rules! operators {
    ($vector:ident: $($trait:ident $method:ident |$a:ident, $b:ident| $result:expr),*) => {$(
        impl std::ops::$trait for $vector {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                let $a = self.0;
                let $b = other.0;
                Self($result)
            }
        }
    )*};
}
