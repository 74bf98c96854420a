# Compiles the library of llama.cpp as a few large files without optimization: its 158 models include the same
# headers, and only build graphs.
function(compile_together)
    if(TARGET llama)
        set_target_properties(llama PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 40)
        target_compile_options(llama PRIVATE -O0)
    endif()
endfunction()
cmake_language(DEFER CALL compile_together)
