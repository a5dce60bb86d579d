import{a,b,c}from"./chunk-DK3HLSKF.js";import"./chunk-CAWXMBCU.js";import"./chunk-SVPYO5R6.js";import"./chunk-WIOUHU42.js";import"./chunk-362SQQVJ.js";export{c as Heads,b as Train,a as joined};
