/* data/index.html, the page of Weft.OpenFlow.Northbound, as bytes of the program. The path is that of the package, in
 * which Cabal compiles. Cabal compiles this file again only if it has changed, so it names the checksum of the page
 * (cksum), which scripts/check compares: 2123931823 20479 */
#define TEXT(x) #x
#define EXPANDED(x) TEXT(x)
#define SYMBOL(name) EXPANDED(__USER_LABEL_PREFIX__) #name

__asm__(".data\n"
        ".globl " SYMBOL(weft_openflow_page) "\n" SYMBOL(weft_openflow_page) ":\n"
        ".incbin \"data/index.html\"\n"
        ".globl " SYMBOL(weft_openflow_page_end) "\n" SYMBOL(weft_openflow_page_end) ":\n"
        ".byte 0\n"
        ".text\n");
